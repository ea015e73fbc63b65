"""The text of exported Python, and the messages during the search for its constraints."""

from __future__ import annotations

import ast
import collections

import jax
import pytest

import toast_lab as tl
from toast_lab.export.python import CARRIED_MODULES, _imports


def test_a_module_is_imported_from_once() -> None:
    lines = _imports(*CARRIED_MODULES)
    origins = [line.split()[1] for line in lines if line.startswith("from ")]
    assert len(origins) > 3
    assert [name for name, count in collections.Counter(origins).items() if count > 1] == []
    assert not [line for line in lines if "toast_lab" in line]
    names = [
        alias.asname or alias.name
        for node in ast.parse("\n".join(lines)).body
        for alias in node.names
    ]
    assert len(names) == len(set(names))


def test_options_reach_the_search_and_the_wait_is_announced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    model = tl.from_jax(lambda x, w: jax.numpy.tanh(x @ w), x, x, name="layer")
    problem = tl.Problem(tl.analyse(model), {"data": 2})
    plan = tl.Plan.from_actions(problem, [f"{problem.analysis.group_name[0]}->data"])
    text = plan.to_python(model=model, proof="propagated", seconds=60)
    assert "by propagation the shardings are" in text
    message = capsys.readouterr().err
    assert "looking for the fewest constraints of layer" in message
    assert "60 s at most" in message
    plan.constraints(minimal=True, model=model, proof="propagated", on_event=lambda event: None)
    assert capsys.readouterr().err == ""
