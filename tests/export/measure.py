"""Plans of the zoo and of PyPI's models as constraints and as exported Python.

Run it as ``python -m tests.export.measure``.

Each case is a small version of a model with a plan that experts use, or one that a search found,
on 8 virtual devices. Three programs are compiled and run: ``plan.jit``, the fewest constraints
under plain ``jax.jit``, and exported Python. The command prints the table of docs/export.md row by
row; ``--only NAME`` prints some of its rows.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from typing import Any

from toast_lab import isolate
from toast_lab.runtime.devices import Devices, environment

MESH = {"data": 4, "model": 2}
NETWORK = {"layers": 2, "d_model": 64, "hidden": 128, "heads": 4, "key_size": 16, "vocab": 128}
ZOO = {
    "t2b": {**NETWORK, "batch": 8, "sequence": 32},
    "t7b": {**NETWORK, "kv_heads": 4, "batch": 8, "sequence": 32},
    "itx": {**NETWORK, "batch": 8, "prompt": 16, "sequence": 16},
    "gns": {"steps": 2, "nodes": 64, "edges": 256, "latent": 32, "hidden": 16, "features": 8},
    "unet": {
        "channels": 32,
        "multipliers": (1, 2),
        "blocks": 1,
        "heads": 4,
        "groups": 4,
        "batch": 8,
        "image": 16,
    },
}
EXPERT = {
    "t2b": "fsdp+megatron", "t7b": "data+megatron+sp", "itx": "data+megatron", "gns": "edge "
"sharding", "unet": "FSDP",
}  # fmt: skip
FOREIGN = ("flax_gpt2", "jraph_network")
HEAD = (
    "model",
    "plan",
    "ops",
    "collectives",
    "constraints",
    "values",
    "exact",
    "bytes that differ",
    "same in Python",
    "same shardings",
    "error",
    "sets tried",
    "s",
)


def one(name: str, how: str, sizes: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Compute one row of the table; runs in a child process."""
    import toast_lab as tl
    from tests.export.programs import compare_ways
    from toast_lab.models.registry import make
    from toast_lab.search.contract import Budget

    if name in FOREIGN:
        built = importlib.import_module(f"tests.foreign_models.{name}").make(**sizes)
        fn, args, options = built[0], built[1], built[2] if len(built) > 2 else {}
        donated = options.get("donate_argnums", ())
        donated = (donated,) if isinstance(donated, int) else tuple(donated)
        model, experts = tl.from_jax(fn, *args, donate_argnums=donated, name=name), {}
    else:
        example = make(name, **sizes)
        fn = example.fn
        args = example.args
        donated = example.donate_argnums
        experts = example.expert_plans
        model = tl.from_jax(
            fn, *args, donate_argnums=donated, dim_names=example.dim_names, name=name
        )
    analysis = tl.analyse(model)
    problem = tl.Problem(analysis, MESH, "tpu-v5e")
    if how == "searched":  # with a quarter of the memory, or nothing would be sharded
        peak = tl.price(problem, tl.replicated(problem)).peak_bytes
        problem = tl.Problem(analysis, MESH, "tpu-v5e", memory_limit_bytes=peak / 4)
        plan = tl.search(problem, seed=0, budget=Budget(seconds=None, evaluations=400)).plan
    elif name in FOREIGN:
        plan = tl.Plan.from_specs(problem, _batch(model))
    else:
        actions = [a for a in experts[how] if a[1] in MESH]
        plan = tl.Plan.from_actions(problem, actions)
    began = time.monotonic()
    compared = compare_ways(fn, args, model, plan, donated, seconds=seconds)
    ways = compared["ways"]
    return {
        "ops": model.program.n_ops,
        "seconds": time.monotonic() - began,
        **compared,
        "collectives": sum(ways["jit"]["collectives"].values()),
        "python": ways["python"]["collectives"] == ways["constraints"]["collectives"],
        "shardings": all(
            ways[w][k] == ways["jit"][k] for w in ways for k in ("arguments", "results")
        ),
        "error": max(w["error"] for w in ways.values()),
    }


def _batch(model: Any) -> dict[str, Any]:
    """Specs with the data axis on the first dim of every argument that is not a parameter."""
    program = model.program
    paths = [(program.value_name[a], program.dims(a)) for a in range(program.n_arguments)]
    specs = {
        p: ("data",)
        for p, dims in paths
        if len(dims) and dims[0] % 4 == 0 and p.startswith(("tokens", "graph"))
    }
    return specs


def cases() -> list[tuple[str, str, dict[str, Any]]]:
    """(model, plan, sizes) for each row of the table."""
    rows: list[tuple[str, str, dict[str, Any]]] = []
    for name, sizes in ZOO.items():
        rows.append((name, EXPERT[name], sizes))
        rows.append((name, "searched", sizes))
    return rows + [(name, how, {}) for name in FOREIGN for how in ("batch", "searched")]


def _yes(held: bool) -> str:
    return "yes" if held else "no"


def main() -> int:
    """Compute and print the rows of the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="for the search of each row (%(default)s)"
    )
    args = parser.parse_args()
    print("| " + " | ".join(HEAD) + " |")
    print("|---|---|" + "--:|" * (len(HEAD) - 2))
    for name, how, sizes in cases():
        if args.only and name not in args.only:
            continue
        try:
            row = isolate.run_in_child(
                "tests.export.measure:one",
                name,
                how,
                sizes,
                args.seconds,
                env=environment(Devices("cpu", 8)),
                time_limit_s=args.seconds + 1800,
            )
        except Exception as error:
            print(
                f"{name}, {how}: {type(error).__name__}: {str(error)[:400]}",
                file=sys.stderr,
                flush=True,
            )
            continue
        spread = sum(size * n for size, n in row["places"].items())
        cells = (
            name,
            how,
            row["ops"],
            f"{row['collectives']:g}",
            row["constraints"],
            spread,
            _yes(row["exact"]),
            f"{row['remaining_bytes']:g} of {row['target_bytes']:g}",
            _yes(row["python"]),
            _yes(row["shardings"]),
            f"{row['error']:.1e}",
            row["tried"],
            f"{row['seconds']:.0f}",
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
