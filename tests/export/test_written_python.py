"""Exported Python runs without TOAST Lab and computes what the function computes."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest

import toast_lab as tl
from tests.export import library_steps, run_exported
from tests.export.written_by_hand import site_at, written_plan
from toast_lab.errors import InvalidPlan
from toast_lab.export.host_patterns import pattern_of
from toast_lab.export.written_patch import to_patch
from toast_lab.export.written_python import to_python
from toast_lab.models import transformer
from toast_lab.runtime.devices import Devices, environment

X_AND_Y = {r"^[xy]$": (("data",), ())}
COLUMNS, ROWS = ((), ("model",)), (("model",), ())
RULES: dict[str, dict[str, Any]] = {
    "plain": {r"\['(up|bias)'\]$": (("model",),), r"\['down'\]$": ROWS, **X_AND_Y},
    "linen": {r"'up'\]\['kernel'\]$": COLUMNS, r"'down'\]\['kernel'\]$": ROWS, **X_AND_Y},
    "nnx": {r"\blayers\[0\]\.kernel$": COLUMNS, r"\blayers\[1\]\.kernel$": ROWS, **X_AND_Y},
    "equinox": {r"layers\[0\]\.weight$": ROWS, r"layers\[1\]\.weight$": COLUMNS, **X_AND_Y},
    "haiku": {r"'linear'\]\['w'\]$": COLUMNS, r"'linear_1'\]\['w'\]$": ROWS, **X_AND_Y},
}
PACKAGES = {
    "plain": "optax",
    "linen": "flax",
    "nnx": "flax",
    "equinox": "equinox",
    "haiku": "haiku",
}
INSTALLED = [name for name in RULES if importlib.util.find_spec(PACKAGES[name]) is not None]


Job = tuple[str, dict[str, int], str, str]


def run(folder: Path, jobs: list[Job]) -> list[dict[str, Any]]:
    """Run exported files in a child process that has eight devices and no TOAST Lab."""
    done = subprocess.run(
        [sys.executable, run_exported.__file__, str(folder), json.dumps(jobs)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, **environment(Devices("cpu", 8)), "PYTHONPATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def model_of(case: library_steps.Case, name: str) -> tl.Model:
    args, keywords = case.fresh(), {}
    fn: Any = case.step
    if name == "with_options":
        fn, keywords = jax.jit(case.step, static_argnums=1), {"y": args[-1]}
    args = args[: len(args) - len(keywords)]
    return tl.from_jax(fn, *args, donate_argnums=case.donated, name=name, **keywords)


HIDDEN = {
    "plain": "hidden = jnp.tanh(x @",
    "linen": "hidden = nn.Dense(",
    "nnx": "hidden = nnx.relu(",
    "equinox": "hidden = jax.vmap(",
    "haiku": "hidden = jax.nn.relu(",
}


def write_explicit(folder: Path) -> str:
    """Write the plain step, patched for explicit mode, and its file."""
    source = folder / "explicit_steps.py"
    source.write_text(Path(library_steps.__file__).read_text())
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    steps = sys.modules[source.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(steps)
        model = model_of(steps.plain(), "plain")
        site = site_at(source, HIDDEN["plain"], "hidden")
        bias, up, down = (rf"\['{name}'\]$" for name in ("bias", "up", "down"))
        rules: dict[str, Any] = {bias: (("model",),), up: COLUMNS, down: ROWS, **X_AND_Y}
        written = written_plan(model, rules, [(site, (("data",), ("model",)))])
        specs = {"x": ("data", None), "params['layers'][0]['up']": (None, "model")}
        plan = tl.Plan.from_specs(written.problem, specs)
        written = dataclasses.replace(written, plan=plan)
        patch = to_patch(written, folder, "explicit")
    finally:
        del sys.modules[source.stem]
    assert patch.left_out == ()
    subprocess.run(["git", "apply", "-"], cwd=folder, check=True, input=patch.text.encode())
    text = to_python(written, "explicit")
    (folder / "explicit_sharding.py").write_text(text)
    return source.read_text() + text


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the files of all libraries compute, in one child process.

    Each function has the constraint that the patch writes; the plain one runs with other sizes too.
    """
    folder = tmp_path_factory.mktemp("exported")
    source = folder / "library_steps.py"
    for name in ("library_steps", "original_steps"):
        (folder / f"{name}.py").write_text(Path(library_steps.__file__).read_text())
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    texts = {}
    for name in INSTALLED:
        case = getattr(library_steps, name)()
        site = site_at(source, HIDDEN[name], "hidden")
        constraint = (site, (("data",), ("model",)))
        written = written_plan(model_of(case, name), RULES[name], [constraint])
        texts[name] = to_python(written)
        patch = to_patch(written, folder).text.encode()
        subprocess.run(["git", "apply", "-"], cwd=folder, check=True, input=patch)
    for name in ("offloaded", "with_options"):
        texts[name] = to_python(
            written_plan(model_of(getattr(library_steps, name)(), name), X_AND_Y)
        )
    for name, text in texts.items():
        (folder / f"{name}_sharding.py").write_text(text)
    jobs: list[Job] = [
        (name, {}, f"{name}_sharding", source.stem if name in INSTALLED else "original_steps")
        for name in texts
    ]
    jobs.append(("plain", {"layers": 3, "width": 32}, "plain_sharding", source.stem))
    texts["explicit"] = write_explicit(folder)
    jobs.append(("plain", {}, "explicit_sharding", "explicit_steps"))
    results = dict(zip([*list(texts)[:-1], "deeper", "explicit"], run(folder, jobs), strict=True))
    return {name: {**result, "text": texts.get(name)} for name, result in results.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RULES)
def test_exported_files_train_as_the_function_does(name: str, outcomes: dict[str, Any]) -> None:
    if name not in INSTALLED:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    outcome = outcomes[name]
    assert outcome["losses"] == pytest.approx(outcome["unsharded"], rel=1e-5)
    assert outcome["losses"][2] < outcome["losses"][0]
    assert outcome["text"].count("\n") <= (90 if name == "nnx" else 80)
    assert outcome.get("constraints", 2) >= 2  # the value's and its cotangent's


def test_explicit_mode_computes_the_same_where_jax_refused_before(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["explicit"]
    assert outcome["losses"] == pytest.approx(outcome["unsharded"], rel=1e-5)
    assert 'hidden = jax.sharding.reshard(hidden, P("data", "model"))' in outcome["text"]
    product = 'jax.numpy.matmul(hidden, params["down"], out_sharding=P("data", None))'
    assert f"return x + {product}" in outcome["text"]
    assert "AxisType.Explicit" in outcome["text"]


@pytest.mark.parametrize("name", ["deeper", "offloaded", "with_options"])
def test_other_sizes_host_memory_and_static_arguments(name: str, outcomes: dict[str, Any]) -> None:
    outcome = outcomes[name]
    assert outcome["losses"] == pytest.approx(outcome["unsharded"], rel=1e-5)
    assert outcome["losses"][2] < outcome["losses"][0]
    if name == "offloaded":
        assert set(outcome["memories"]) == {"device", "pinned_host"}


def test_files_of_a_large_model_are_short_and_made_at_once() -> None:
    model = tl.load("t2b", layers=2)
    weights = ["embed", "final_norm", "attn_norm", "mlp_norm", "wq", "wk", "wv", "wo"]
    weights += ["w_gate", "w_up", "w_down"]
    rules: dict[str, Any] = {rf"\['{weight}'\]$": (("data",),) for weight in weights}
    file = Path(transformer.__file__)
    site = site_at(file, "x = x + geglu(", "x", function="layer", rank=3)
    constraints = [(site, (("data",), ("model",), ()))] * 8
    written = written_plan(model, {**rules, "^(tokens|targets)$": (("data",), ())}, constraints)
    started = time.perf_counter()
    text = to_python(written)
    assert time.perf_counter() - started < 1.0
    assert text.count("\n") <= 80
    assert f'transformer.py:{site.line}  x: P("data", "model", None)' in text
    assert "12 rules and 8 constraints" in text
    assert "out_shardings=(ins[0], ins[1], None)" in text
    assert "donate_argnums=(0, 1)" in text


def test_rules_that_decide_other_arguments_are_refused() -> None:
    model = model_of(library_steps.plain(), "plain")
    written = written_plan(model, {r"\['up'\]$": COLUMNS, **X_AND_Y})
    first, last = written.rules
    wrong = (first._replace(pattern="down"), last._replace(pattern=r"y$"))
    with pytest.raises(InvalidPlan, match=r"params\['layers'\]\[0\]\['up'\]: no rule") as error:
        to_python(dataclasses.replace(written, rules=wrong))
    assert "x: no rule instead of y$" in str(error.value)


def test_programs_without_a_function_and_leaves_that_are_no_arrays_are_refused() -> None:
    text = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"
    with pytest.raises(InvalidPlan, match="came without its function"):
        to_python(written_plan(tl.from_stablehlo(text), {}))
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    model = tl.from_jax(lambda given: given["x"] * 2.0, {"x": x, "name": "text"})
    with pytest.raises(InvalidPlan, match=r"given: jax\.jit takes no pytree with leaves that"):
        to_python(written_plan(model, {}))


def test_results_that_rules_decide_are_sharded_and_others_are_not() -> None:
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    model = tl.from_jax(
        lambda x, w: {"out": x @ w, "sum": x.sum()}, x, jax.ShapeDtypeStruct((16, 16), "float32")
    )
    text = to_python(written_plan(model, {r"\['out'\]$|^x$": (("data",),)}))
    assert 'out_shardings=shardings("result", shapes, None)' in text
    text = to_python(written_plan(model, {"^x$": (("data",),)}))
    assert "out_shardings" not in text


def test_patterns_of_host_memory() -> None:
    paths = ["p['w'][0]", "o.mu['w'][0]", "o.mu['w'][1]", "o.count", "o.mu2"]
    chosen = ["o.mu['w'][0]", "o.mu['w'][1]"]
    pattern = pattern_of(paths, chosen)
    assert [path for path in paths if re.search(pattern, path)] == chosen
    assert re.search(pattern, "o.mu['w'][7]")
    assert pattern_of(paths, []) == ""
    odd = pattern_of(["l[0].w", "l[1].w"], ["l[1].w"])
    assert [bool(re.search(odd, path)) for path in ("l[0].w", "l[1].w")] == [False, True]


def test_modes_that_are_not_exported_are_refused() -> None:
    written = written_plan(model_of(library_steps.plain(), "plain"), {})
    for export in (to_python, to_patch):
        with pytest.raises(InvalidPlan, match=r"mode 'manual': it is 'auto' or 'explicit'"):
            export(written, mode="manual")
    if "equinox" in INSTALLED:
        with pytest.raises(InvalidPlan, match="this one needs equinox"):
            to_python(written_plan(model_of(library_steps.equinox(), "equinox"), {}), "explicit")
