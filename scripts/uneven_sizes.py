"""What JAX and XLA make of sizes that a mesh does not divide, compiled for 16 TPU v5e.

``python scripts/uneven_sizes.py`` prints the table of docs/pad_sizes.md: estimated cycles of a step
by the compiler (none of them for collectives), bytes of a device, collectives. It needs no TPU.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any

os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
CYCLES = re.compile(r'estimated_cycles":"(\d+)')
P = PartitionSpec


def compiled(mesh: Any, fn: Any, shapes: Any, specs: Any, result: Any = None) -> str:
    """What the compiler says of a function with these shardings of arguments and result."""
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    options = {} if result is None else {"out_shardings": NamedSharding(mesh, result)}
    try:
        executable = jax.jit(fn, in_shardings=shardings, **options).lower(*shapes).compile()
    except ValueError as error:
        return f"refused: {str(error).splitlines()[0][:60]} ..."
    text, memory = executable.as_text(), executable.memory_analysis()
    cycles = sum(map(int, CYCLES.findall(text)))
    nbytes = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    kinds = ", ".join(
        f"{n} {kind}" for kind, n in sorted(Counter(COLLECTIVE.findall(text)).items())
    )
    return f"{cycles:,} cycles, {nbytes / 1e6:.0f} MB, {kinds or 'no collectives'}"


def main() -> None:
    """Print the rows."""
    chip = topologies.get_topology_desc(platform="tpu", topology_name="v5e:4x4")
    mesh = jax.sharding.Mesh(np.asarray(chip.devices).reshape(4, 4), ("data", "model"))

    def constrained(value: Any, *axes: Any) -> Any:
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, P(*axes)))

    def logits(x: Any, table: Any) -> Any:
        return x @ table.T

    def likelihood(x: Any, table: Any) -> Any:
        return jax.nn.logsumexp(logits(x, table), -1)

    def likelihood_constrained(x: Any, table: Any) -> Any:
        return jax.nn.logsumexp(constrained(logits(x, table), "data", "model"), -1)

    for size in (50257, 50272):
        shapes = [jax.ShapeDtypeStruct(s, "bfloat16") for s in ((512, 1600), (size, 1600))]
        whole, rows = (P("data"), P()), (P("data"), P("model"))
        columns = (P("data"), P(None, "model"))
        for name, row in {
            "table whole": (likelihood, shapes, whole),
            "table whole, constraint on logits": (likelihood_constrained, shapes, whole),
            "table by columns, constraint on logits": (likelihood_constrained, shapes, columns),
            "table by rows": (likelihood, shapes, rows),
            "logits as a result": (logits, shapes, whole, P("data", "model")),
        }.items():
            print(f"vocabulary {size}, {name}: {compiled(mesh, *row)}", flush=True)

    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype("float32")
        shares = jax.nn.softmax(scores, -1).astype("bfloat16")
        return jnp.einsum("bhqk,bkhd->bqhd", shares, value)

    def attention_constrained(*parts: Any) -> Any:
        return attention(*(constrained(part, "data", None, "model") for part in parts))

    for heads in (25, 28):
        shape = jax.ShapeDtypeStruct((8, 1024, heads, 64), "bfloat16")
        for name, fn in {"whole": attention, "constrained": attention_constrained}.items():
            text = compiled(mesh, fn, [shape] * 3, (P("data"),) * 3)
            print(f"{heads} heads, {name}: {text}", flush=True)


if __name__ == "__main__":
    main()
