"""The examples of docs/python.md that draw charts and query graphs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import holoviews as hv
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()


def example(heading: str) -> dict[str, Any]:
    """The variables that the first Python block below a heading defines."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    variables: dict[str, Any] = {}
    exec(compile(code, "docs/python.md", "exec"), variables)
    return variables


def test_the_charts_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import toast_lab as tl

    monkeypatch.chdir(tmp_path)
    variables = example("Charts")
    assert (tmp_path / "step.svg").read_text().startswith("<svg ")
    assert len(variables["curves"]) == 4
    for name in ("curves", "step", "linked"):
        assert hv.render(variables[name], "bokeh")
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.partition("\n## Charts\n")[2], re.MULTILINE)
    assert sorted(listed) == sorted(tl.charts.__all__)


def test_the_graph_of_the_page() -> None:
    variables = example("Graphs")
    cut = [
        edge["bytes"]
        for a, b, edge in variables["joined"].edges(data=True)
        if (a in variables["left"]) != (b in variables["left"])
    ]
    assert sum(cut) == variables["cut_bytes"] == pytest.approx(2**20)
