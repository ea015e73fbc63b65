"""A patch gives the reason for each constraint that it leaves out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from toast_lab.export import patch
from toast_lab.export.constrained import EquationPlace
from toast_lab.export.places import Equation


def equation(*files: str) -> Equation:
    frames = tuple((file, 1, 0, 1, 4) for file in files)
    return Equation(
        EquationPlace("x.py:1", "mul", False, (2,)),
        0,
        0,
        1,
        1,
        (0,),
        ((),),
        (0,),
        "x.py:1",
        "",
        frames,
    )


def test_library_code_missing_lines_and_shared_expressions_are_told_apart() -> None:
    library = np.__file__
    assert "no source line" in patch._no_expression(equation())
    assert "library code (__init__.py)" in patch._no_expression(equation(library))
    assert "also makes values without this constraint" in patch._no_expression(
        equation(library, __file__)
    )


def test_packages_of_other_environments_are_libraries_too(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "model.py", tmp_path / "site-packages" / "model.py"
    theirs.parent.mkdir()
    for file in (mine, theirs):
        file.write_text("x = 1\n")
    assert not patch._is_library(str(mine))
    assert patch._is_library(str(theirs))
