"""The patch of a written plan: one statement for each constraint, and nothing else changes."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
from pathlib import Path
from typing import Any

import jax
import pytest

import toast_lab as tl
from tests.export.written_by_hand import site_at, text_of, written_plan
from toast_lab.errors import InvalidPlan
from toast_lab.export.source_edits import Patch
from toast_lab.export.written_patch import to_patch
from toast_lab.ir.sites import Site
from toast_lab.written.written_plan import WrittenPlan

SPEC = (("data",), ())
TEXT = 'jax.lax.with_sharding_constraint({}, P("data", None))'


@functools.cache
def model() -> tl.Model:
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    return tl.from_jax(lambda x: jax.numpy.tanh(x), x, name="step")


def plan(*sites: Site) -> WrittenPlan:
    return written_plan(model(), {}, [(site, SPEC) for site in sites])


def patch_of(folder: Path, source: str, name: str = "x", text: str = "f(", **fields: Any) -> Patch:
    """The patch of a source with one constraint, at the line that contains ``text``."""
    file = folder / "model.py"
    file.write_bytes(source.encode())
    return to_patch(plan(site_at(file, text, name, **fields)), folder)


def applied(folder: Path, patch: Patch) -> str:
    """The source after ``git apply``, which has to be the one that the patch gives."""
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(
        ["git", "apply", "-"], cwd=folder, check=True, input=patch.text.encode(), timeout=60
    )
    (file, source), *others = patch.sources.items()
    assert not others
    assert text_of(file) == source
    return source


HEAD = "import jax\nfrom jax.sharding import PartitionSpec as P\n\n"
STATEMENTS = {
    "assignment": ("def s(y):\n    x = f(y)\n    return x\n", "    x = f(y)\n    x = {}\n"),
    "comment": ("def s(y):\n    x = f(y)  # why\n", "    x = f(y)  # why\n    x = {}\n"),
    "annotated": ("def s(y):\n    x: int = f(y)\n", "    x: int = f(y)\n    x = {}\n"),
    "added": ("def s(y, x):\n    x += f(y)\n", "    x += f(y)\n    x = {}\n"),
    "tabs": ("def s(y):\n\tif y:\n\t\tx = f(y)\n", "\t\tx = f(y)\n\t\tx = {}\n"),
    "pair": ("def s(y):\n    x, z = f(y)\n", "    x, z = f(y)\n    x = {}\n"),
    "twice": ("def s(y):\n    x = z = f(y)\n", "    x = z = f(y)\n    x = z = {}\n"),
    "one line": ("def s(y):\n    if y: x = f(y)\n", "    if y: x = f(y); x = {}\n"),
    "semicolon": ("def s(y):\n    x = f(y); z = x\n", "    x = f(y); x = {}; z = x\n"),
    "second": ("def s(y):\n    z = y; x = f(y)\n", "    z = y; x = f(y); x = {}\n"),
    "no end": ("def s(y):\n    x = f(y)", "    x = f(y)\n    x = {}"),
    "other letters": ('def s(y):\n    x = f("é", y); z = x\n', 'x = f("é", y); x = {}; z = x\n'),
}


@pytest.mark.parametrize("kind", STATEMENTS)
def test_a_constraint_is_a_statement_after_the_one_that_it_constrains(
    kind: str, tmp_path: Path
) -> None:
    source, expected = STATEMENTS[kind]
    patch = patch_of(tmp_path, HEAD + source)
    assert expected.replace("{}", TEXT.format("x")) in applied(tmp_path, patch)
    added, removed = (
        [line for line in patch.text.splitlines()[2:] if line.startswith(sign)] for sign in "+-"
    )
    assert len(added) == len(removed) + 1 or len(added) == len(removed) == 1
    assert not patch.left_out


def test_attributes_and_statements_of_several_lines(tmp_path: Path) -> None:
    source = HEAD + "def s(self, y):\n    self.x = f(\n        y,\n    )\n    return self.x\n"
    patch = patch_of(tmp_path, source, "self.x", end_line=7)
    constrained = f"    )\n    self.x = {TEXT.format('self.x')}\n    return"
    assert constrained in applied(tmp_path, patch)


RETURNS = {
    "simple": ("    return f(y)\n", "    return C(f(y), {})\n"),
    "comment": ("    return f(y)  # why\n", "    return C(f(y), {})  # why\n"),
    "brackets": ("    return (f(y)\n        + y)\n", "    return (C(f(y)\n        + y, {}))\n"),
    "choice": ("    return f(y) if y else y\n", "    return C(f(y) if y else y, {})\n"),
    "one line": ("    if y: return f(y)\n", "    if y: return C(f(y), {})\n"),
}


@pytest.mark.parametrize("kind", RETURNS)
def test_what_is_returned_is_wrapped(kind: str, tmp_path: Path) -> None:
    source, expected = RETURNS[kind]
    end_line = 4 + source.count("\n")
    patch = patch_of(tmp_path, f"{HEAD}def s(y):\n{source}", "", end_line=end_line)
    expected = expected.replace("C(", "jax.lax.with_sharding_constraint(")
    assert expected.replace("{}", 'P("data", None)') in applied(tmp_path, patch)


def test_an_element_of_a_returned_tuple_is_wrapped(tmp_path: Path) -> None:
    source = f"{HEAD}def s(y):\n    return y, (f(y)\n        + y), 3\n"
    patch = patch_of(tmp_path, source, "", "return", end_line=6, element=1)
    expected = 'return y, (jax.lax.with_sharding_constraint(f(y)\n        + y, P("data", None))), 3'
    assert expected in applied(tmp_path, patch)


IMPORTS = {
    "nothing": ("y = 1\n", "import jax\nfrom jax.sharding import PartitionSpec as P\ny = 1\n"),
    "docstring": (
        '"""Text."""\n\nfrom __future__ import annotations\n\nimport math\n\ny = 1\n',
        '"""Text."""\n\nfrom __future__ import annotations\n\nimport math\nimport jax\n'
        "from jax.sharding import PartitionSpec as P\n\ny = 1\n",
    ),
    "comments": (
        "#!/usr/bin/env python\n# why\n\ny = 1\n",
        "#!/usr/bin/env python\n# why\nimport jax\n"
        "from jax.sharding import PartitionSpec as P\n\ny = 1\n",
    ),
    "numpy alone": (
        "import jax.numpy as jnp\n",
        "import jax.numpy as jnp\nimport jax\nfrom jax.sharding import PartitionSpec as P\n",
    ),
    "a submodule": ("import jax.numpy\nfrom jax.sharding import PartitionSpec as P\n", ""),
}


@pytest.mark.parametrize("kind", IMPORTS)
def test_missing_imports_are_added_after_those_that_are_there(kind: str, tmp_path: Path) -> None:
    source, expected = IMPORTS[kind]
    changed = applied(tmp_path, patch_of(tmp_path, f"{source}\ndef s(y):\n    x = f(y)\n"))
    assert changed.startswith(expected or source)
    assert changed.count("PartitionSpec as P") == 1


NAMES = {
    "PartitionSpec": "from jax.sharding import Mesh, PartitionSpec\n",
    "Spec": "from jax.sharding import PartitionSpec as Spec\n",
    "PS": "import jax\nPS = jax.sharding.PartitionSpec\n",
    "jax.sharding.PartitionSpec": "from probability import P\n",
}


@pytest.mark.parametrize("name", NAMES)
def test_specs_have_the_name_that_the_module_has_for_them(name: str, tmp_path: Path) -> None:
    changed = applied(tmp_path, patch_of(tmp_path, f"{NAMES[name]}\ndef s(y):\n    x = f(y)\n"))
    assert f'(x, {name}("data", None))' in changed
    assert "as P\n" not in changed


def test_ends_of_lines_stay(tmp_path: Path) -> None:
    source = (HEAD + "def s(y):\n    x = f(y)\n    return x\n").replace("\n", "\r\n")
    changed = applied(tmp_path, patch_of(tmp_path, source))
    assert changed.count("\r\n") == changed.count("\n") == source.count("\n") + 1


def test_several_constraints_of_one_file_and_of_one_statement(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"{HEAD}def s(y):\n    x, z = f(y)\n    w = g(x)\n    return h(w, z)\n")
    sites = [
        site_at(file, "return h", ""),
        site_at(file, "f(y)", "x"),
        site_at(file, "f(y)", "z"),
        site_at(file, "g(x)", "w"),
    ]
    changed = applied(tmp_path, to_patch(plan(*sites), tmp_path))
    x, z, w = (f"    {name} = {TEXT.format(name)}\n" for name in "xzw")
    assert f"    x, z = f(y)\n{x}{z}    w = g(x)\n{w}    return jax" in changed


def test_no_constraint_goes_into_another(tmp_path: Path) -> None:
    given = 'jax.lax.with_sharding_constraint(f(y), P("model", None))'
    patch = patch_of(tmp_path, f"{HEAD}def s(y):\n    return {given}\n", "")
    assert patch.text == ""
    (reason,) = patch.left_out
    assert 'model.py:5  return of step: P("data", None): the source has' in reason


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"{HEAD}def s(y):\n    x = f(y)\n    return x\n")
    written = plan(site_at(file, "f(y)", "x"))
    file.write_text(f"{HEAD}def s(y):\n    x = f(y)\n    return 2 * x\n")
    with pytest.raises(InvalidPlan, match=r"model\.py: it has changed since"):
        to_patch(written, tmp_path)
    file.write_text(f"{HEAD}def s(y):\n    y = y\n    x = f(y)\n    return x\n")
    with pytest.raises(InvalidPlan, match=r"model\.py: it has changed since"):
        to_patch(written, tmp_path)
    # Where no digest is known the line tells
    unknown = dataclasses.replace(written, digests={})
    with pytest.raises(InvalidPlan, match=r"was 'x = f\(y\)' and is 'y = y'"):
        to_patch(unknown, tmp_path)
    file.unlink()
    with pytest.raises(InvalidPlan, match="no such file"):
        to_patch(written, tmp_path)


def test_a_site_that_cannot_carry_a_constraint_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"{HEAD}def s(y):\n    x = f(y)\n    z = g(x)\n    return z\n")
    refused = site_at(file, "f(y)", "x", refusal="inside vmap; constrain z at model.py:6")
    patch = to_patch(plan(refused), tmp_path)
    assert patch.text == ""
    (reason,) = patch.left_out
    assert reason == 'model.py:5  x: P("data", None): inside vmap; constrain z at model.py:6'


def test_files_elsewhere_have_whole_paths(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    file = tmp_path / "model.py"
    file.write_text(f"{HEAD}def s(y):\n    x = f(y)\n")
    text = to_patch(plan(site_at(file, "f(y)", "x")), tmp_path / "root").text
    assert text.startswith(f"--- {file.as_posix()}\n+++ {file.as_posix()}\n")
    inside = to_patch(plan(site_at(file, "f(y)", "x")), tmp_path.parent).text
    assert inside.startswith(f"--- a/{tmp_path.name}/model.py\n+++ b/{tmp_path.name}/model.py\n")
