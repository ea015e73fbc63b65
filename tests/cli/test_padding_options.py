"""``--padding`` and ``--pad``: sizes that the mesh does not divide, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NET = ["attention", "--set", "sequence=4095", "d_model=64", "--mesh", "4"]


def test_a_search_pads_and_its_plan_is_priced_and_exported(tmp_path: Path, toast: Any) -> None:
    status, out, error = toast("search", *NET, "--padding", "--seconds", "2", "--json")
    assert status == 0, error
    data = json.loads(out)
    assert data["padding"]["words"] == ["S 4095 to 4096"]
    assert "as written" in data["search"]["message"]
    plan = tmp_path / "plan.json"
    padded = [*NET, "--pad", "S=4096"]
    assert toast("search", *padded, "--evaluations", "200", "--save", str(plan))[0] == 0
    status, out, error = toast("price", *padded, "--plan", str(plan), "--json")
    assert status == 0, error
    assert json.loads(out)["cost"]["time_s"] > 0
    file = tmp_path / "step_padding.py"
    first, *rest = padded
    status, _, error = toast("export", first, str(plan), *rest, "--padding", str(file))
    assert status == 0, error
    assert "4095, 4096" in file.read_text()


def test_a_bad_size_is_said(toast: Any) -> None:
    assert "'S' is not COLOUR=SIZE, such as heads=32" in toast("price", *NET, "--pad", "S")[2]
    assert "no colour is called 'T'" in toast("price", *NET, "--pad", "T=4096", "--actions")[2]


def test_the_price_of_a_plan_says_what_padding_would_bring(toast: Any) -> None:
    status, out, error = toast("price", *NET, "--actions", "--padding")
    assert status == 0, error
    assert "With one size padded and then split" in out
    status, out, error = toast("price", *NET, "--actions", "--padding", "--json")
    assert status == 0, error
    data = json.loads(out)
    (best, *_) = data["padding"]
    assert best["sizes"] == {"S": 4096}
    assert best["name"].startswith("S 4095 to 4096, S->")
    assert best["time_s"] < data["cost"]["time_s"]
    divided = [*NET[:1], "--set", "sequence=4096", "d_model=64", "--mesh", "4"]
    out = toast("price", *divided, "--actions", "--padding")[1]
    assert "nothing that could be padded is worth it" in out
