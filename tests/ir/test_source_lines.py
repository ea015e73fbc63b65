"""A source line is traced to its function, under the name that people use for it."""

from __future__ import annotations

from pathlib import Path

from toast_lab.ir.locations import SourceFrame, user_frame
from toast_lab.ir.source_lines import function_of

SOURCE = """\
import math

class Attention:
    scale = 1.0
    if scale:
        def project(self, x):
            return x

    def __call__(self, x):
        def inner(y):
            return y
        return inner(x)

def loss(x):
    return x
"""


def test_methods_are_called_with_their_class_and_layers_by_it(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(SOURCE)
    named = {line: function_of(SourceFrame(str(file), line)) for line in (1, 7, 11, 12, 15)}
    assert named == {
        1: "model.py:1",
        7: "Attention.project",
        11: "inner",
        12: "Attention",
        15: "loss",
    }


def test_a_line_of_a_library_stands_for_itself() -> None:
    frame = user_frame("/venv/site-packages/flax/linear.py:42")
    assert function_of(frame) == "linear.py:42"
