"""``toast-lab export`` turns a saved plan into files that work."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

OWN = """
import jax
import jax.numpy as jnp


def step(params, x):
    h = jnp.tanh(x @ params["w1"])
    y = h @ params["w2"]
    return y


def make(batch=32):
    shape = jax.ShapeDtypeStruct
    params = {"w1": shape((16, 64), "float32"), "w2": shape((64, 16), "float32")}
    names = {"w1": ("embed", "mlp"), "w2": ("mlp", "embed"), "x": ("batch", "embed")}
    return step, (params, shape((batch, 16), "float32")), {"dim_names": names}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's module, which is importable and the working folder."""
    (tmp_path / "my_own_net.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_every_output_of_a_users_own_model(toast: Any, own: Path) -> None:
    actions = ["batch->data", "embed->data"]
    status, _, err = toast(
        "price", "my_own_net:make", "--mesh", "data=4", "--actions", *actions, "--save", "plan.json"
    )
    assert status == 0, err
    files = ["--python", "out.py", "--patch", "out.diff", "--test", "test_out.py"]
    files += ["--rules", "r.py", "--stablehlo", "o.mlir"]
    status, out, err = toast("export", "my_own_net:make", "plan.json", *files, "--json")
    assert status == 0, err
    data = json.loads(out)["written"]
    size, rules = data["size"], data["rules"]
    assert (len(rules), len(data["constraints"])) == (size["rules"], size["constraints"])
    assert data["loss"] <= 0.05
    ast.parse((own / "out.py").read_text())
    counted = f"{size['rules']} rule{'s' * (size['rules'] != 1)} and"
    assert counted in (own / "out.py").read_text().splitlines()[0]
    assert all(rule["pattern"] in (own / "out.py").read_text() for rule in rules)
    patch = (own / "out.diff").read_text()
    assert patch.count("+") == 0 or "with_sharding_constraint" in patch
    assert "LOGICAL_AXIS_RULES" in (own / "r.py").read_text()
    assert "sdy.sharding_constraint" in (own / "o.mlir").read_text()
    assert "tl.load('my_own_net:make'" in (own / "test_out.py").read_text()


def test_a_size_bounds_what_is_written(toast: Any, own: Path) -> None:
    actions = ["batch->data", "embed->data"]
    save = ["--save", "plan.json"]
    toast("price", "my_own_net:make", "--mesh", "data=4", "--actions", *actions, *save)
    status, out, err = toast("export", "my_own_net:make", "plan.json", "--size", "1", "--json")
    assert status == 0, err
    size = json.loads(out)["written"]["size"]
    assert size["rules"] + size["constraints"] <= 1
    status, out, _ = toast(
        "export", "my_own_net:make", "plan.json", "--explicit", "--python", "explicit.py"
    )
    assert status == 0
    assert "AxisType.Explicit" in (own / "explicit.py").read_text()


def test_bad_input_is_said_and_nothing_is_written(toast: Any, own: Path) -> None:
    status, _, err = toast("export", "my_own_net:make", "nowhere.json", "--python", "out.py")
    assert status == 2
    assert "nowhere.json" in err
    toast(
        "price",
        "my_own_net:make",
        "--mesh",
        "data=4",
        "--actions",
        "batch->data",
        "--save",
        "plan.json",
    )
    status, _, err = toast(
        "export", "my_own_net:make", "plan.json", "--python", "no/such/folder/out.py"
    )
    assert status == 2
    assert "no/such/folder" in err
    status, _, err = toast("export", "mlp", "plan.json", "--python", "out.py")
    assert status == 2
    assert not (own / "out.py").exists()
