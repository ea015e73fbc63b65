"""The messages about a mesh and a machine while they are typed."""

from __future__ import annotations

import pytest

from tests.helpers import analysed
from toast_lab.machines.catalogue import MACHINES
from toast_lab.views.editor_checks import check_machine, check_mesh


@pytest.mark.parametrize(
    ("text", "good", "said"),
    [
        ("", False, "Type axes"),
        ("data", False, "cannot read the mesh"),
        ("data=", False, "cannot read the mesh"),
        ("data=4", True, "4 devices"),
        ("data=4,model=2", True, "4 × 2 = 8 devices on tpu-v5e."),
        ("data=4,model=7", True, "model=7 divides no dim; the sizes are 8, 16, 32, 64."),
        ("data=6", True, "data=6 divides no dim; 2 would."),
        ("data=64", True, "data=64 divides 1 of 4 colours, not D, H1, H2."),
        ("data=1,model=2", True, "data=1 cuts nothing."),
        ("4x2", True, "8 devices"),
        ("data=512", False, "joins at most 256"),
        ("64x64x64", False, "at most 4,096"),
        ("a=2,a=2", False, "axis names repeat"),
        ("x" * 300, False, "300 characters"),
    ],
)
def test_every_keystroke_has_its_verdict(text: str, good: bool, said: str) -> None:
    verdict = check_mesh(text, analysed("attention"), MACHINES["tpu-v5e"])
    assert verdict.good is good
    assert (verdict.mesh is not None) is good
    assert said in " ".join(verdict.lines)


@pytest.mark.parametrize("name", MACHINES)
def test_the_files_of_built_in_machines_are_right(name: str) -> None:
    verdict = check_machine(MACHINES[name].toml())
    assert verdict.machine == MACHINES[name]


def test_a_machine_file_names_field_and_line_of_every_mistake() -> None:
    text = (
        'name = "x"\nmemory_bytes = 3\nmemory_byte_per_s = 4\nop_overhead_s = '
        '"fast"\n[flops]\nf32 = true\n'
        '[[links]]\nname = "inner"\ntopology = "switch"\nbytes_per_s = 1e9\nlatency_s = '
        "1e-6\ndevices = 2\n"
        '[[links]]\nname = "outer"\ntopology = "cloud"\nbytes_per_s = "x"\n'
    )
    lines = check_machine(text).lines
    for wanted in (
        "line 3: memory_byte_per_s: no such key",
        "line 4: op_overhead_s = 'fast' is not a number",
        "line 6: flops.f32 = True is not a number",
        "line 13: links[1].latency_s is missing",
        "line 16: links[1].bytes_per_s = 'x' is not a number",
    ):
        assert any(line.startswith(wanted) for line in lines), (wanted, lines)
    assert any(line.startswith("memory_bytes_per_s is missing") for line in lines)


def test_what_is_no_toml_says_where() -> None:
    assert "line 2" in check_machine('name = "x"\nmemory_bytes = \n').lines[0]
