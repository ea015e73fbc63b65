"""``written.to_patch()``: the constraints of a written plan as a diff of the user's source.

Each constraint is one statement after the one that it constrains,

    x = jax.lax.with_sharding_constraint(x, P("data", None))

or around what a function returns. Autodiff constrains cotangents alike, so that the backward pass
needs nothing of its own. A ``P`` alone needs a mesh around the call: ``written_python`` has it.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from toast_lab import syntax
from toast_lab.errors import InvalidPlan, join_offenders
from toast_lab.export.explicit_edits import explicit_texts
from toast_lab.export.modes import AUTO, CONSTRAIN, EXPLICIT, check_mode
from toast_lab.export.source_edits import (
    Insertion,
    Patch,
    checked,
    import_lines,
    imports_jax,
    line_end,
    line_starts,
    missing_imports,
    span,
    spec_name,
    unified,
    with_insertions,
)
from toast_lab.export.spec_text import constraint_spec, constraint_text
from toast_lab.files import PathLike
from toast_lab.frontends.instrumented import SourceText, returned_elements
from toast_lab.ir.model import Function
from toast_lab.ir.program import Program
from toast_lab.ir.sites import Site
from toast_lab.written.written_plan import SiteConstraint, WrittenPlan


def to_patch(written: WrittenPlan, root: PathLike | None = None, mode: str = AUTO) -> Patch:
    """The constraints as a diff.

    Args:
        written: the plan.
        root: folder to which paths in the diff are relative; by default the current one. Files
            outside of it get absolute paths.
        mode: of the mesh's axes; "explicit" writes ``jax.sharding.reshard``, and gives a sharding
            to expressions that JAX refuses without one, see ``explicit_edits``.

    Raises:
        InvalidPlan: a file has changed since the sites were found, or there is no such mode.
    """
    check_mode(mode)
    program = written.problem.analysis.program
    left_out, of_file = [], dict[str, list[SiteConstraint]]()
    for constraint in written.constraints:
        if constraint.site.refusal:
            left_out.append(f"{constraint_text(program, constraint)}: {constraint.site.refusal}")
        else:
            of_file.setdefault(constraint.site.file, []).append(constraint)
    recomputed: dict[str, list[_Checkpoint]] = {}
    for layer in written.problem.analysis.model.recompute:
        if layer.refusal or layer.policy not in _POLICIES:
            left_out.append(f"{layer}: {layer.refusal or 'remove jax.checkpoint by hand'}")
            continue
        for file, line, end_line, name in layer.calls:
            place = _Checkpoint(line, end_line, name, _POLICIES[layer.policy])
            recomputed.setdefault(file, []).append(place)
    sources, texts, changed = dict[str, _Source](), dict[str, str](), []
    for file in sorted(of_file.keys() | recomputed.keys()):
        constraints = of_file.get(file, [])
        source, offence = _read(file, constraints, written.digests)
        if source is None:
            changed.append(offence)
            continue
        sources[file] = source
        texts[file], reasons = _constrained(
            source, constraints, recomputed.get(file, ()), program, constrain=CONSTRAIN[mode]
        )
        left_out += reasons
    if changed:
        raise InvalidPlan(
            f"sources do not fit the plan:\n{join_offenders(changed)}\nRestore them, or search "
            "again with the function as it is now"
        )
    if mode == EXPLICIT:
        left_out += _add_explicit(written, sources, texts)
    return _patch(sources, texts, Path(root if root is not None else "."), left_out)


def _add_explicit(
    written: WrittenPlan, sources: dict[str, _Source], texts: dict[str, str]
) -> Sequence[str]:
    """Add to ``texts`` what explicit mode needs besides; gives what is not resolved."""
    function = written.problem.analysis.model.function
    if not isinstance(function, Function):
        return ["where explicit mode needs out_sharding: the function is in another process"]
    explicit = explicit_texts(written, function, texts)
    for file, text in explicit.texts.items():
        if file not in sources:
            source, offence = _read(file, (), {})
            if source is None:
                return [offence]
            sources[file] = source
        data = text.encode()
        edits = missing_imports(data, syntax.parse(text)) if text != sources[file].text else []
        texts[file] = checked(with_insertions(data, edits))
    return explicit.unresolved


def _patch(
    sources: dict[str, _Source], texts: dict[str, str], root: Path, left_out: Sequence[str]
) -> Patch:
    """The diff between sources and their new texts."""
    changed = {file: texts[file] for file in sorted(texts) if texts[file] != sources[file].text}
    diffs = [
        unified(
            sources[file].mark + sources[file].text,
            sources[file].mark + text,
            *_diff_names(Path(file), root),
        )
        for file, text in changed.items()
    ]
    new_sources = {file: sources[file].mark + text for file, text in changed.items()}
    return Patch("".join(diffs), new_sources, tuple(left_out))


class _Source(NamedTuple):
    text: str
    mark: str  #: the byte order mark that the file begins with, if any


def _read(
    file: str, constraints: Sequence[SiteConstraint], digests: Mapping[str, str]
) -> tuple[_Source | None, str]:
    """A source, or why it cannot be edited."""
    path = Path(file)
    if not path.is_file():
        return None, f"{file}: there is no such file; write the constraints by hand"
    data = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        syntax.parse(text)
    except (SyntaxError, ValueError) as error:
        return None, f"{file}: it cannot be read as Python ({error})"
    lines = text.splitlines()
    mark = "\ufeff" if data.startswith(b"\xef\xbb\xbf") else ""
    known = digests.get(file)
    if known is not None and known != digest(text):
        return None, f"{file}: it has changed since the function was traced"
    for site in (constraint.site for constraint in constraints):
        line = lines[site.line - 1].strip() if site.line <= len(lines) else ""
        if line != site.text:
            return None, (
                f"{file}:{site.line}: it has changed since the function was traced: the line was "
                f"{site.text!r} and is {line!r}"
            )
    return _Source(text, mark), ""


def digest(text: str) -> str:
    """The digest of a source as Python reads it, which ``WrittenPlan.digests`` has."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text and not text.endswith("\n"):
        text += "\n"
    return SourceText("", text).digest


def _diff_names(file: Path, root: Path) -> tuple[str, str]:
    file, root = file.resolve(), root.resolve()
    if not file.is_relative_to(root):
        return file.as_posix(), file.as_posix()
    name = file.relative_to(root).as_posix()
    return f"a/{name}", f"b/{name}"


class _Checkpoint(NamedTuple):
    """A call around whose function ``jax.checkpoint`` shall stand."""

    line: int
    end_line: int
    name: str  #: what is called, as written
    policy: str  #: further arguments of ``jax.checkpoint``


#: what ``jax.checkpoint`` gets beside the function, by the policy of a layer
_POLICIES = {
    "inputs": "",
    "products": ", policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable",
}


def _checkpoints(
    data: bytes, tree: ast.Module, places: Sequence[_Checkpoint]
) -> tuple[list[Insertion], list[str]]:
    """Insertions around what is called at these places, and the places that are not found."""
    starts, insertions, missing = line_starts(data), [], []
    for place in places:
        functions = [
            node.func
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and (node.lineno, node.end_lineno) >= (place.line, place.line)
            and (node.end_lineno or 0) <= place.end_line
            and ast.unparse(node.func) == place.name
        ]
        if not functions:
            missing.append(f"jax.checkpoint({place.name}): it is not called at line {place.line}")
        for function in functions:
            begin, end = span(starts, function)
            insertions += [
                Insertion(begin, "jax.checkpoint("),
                Insertion(end, f"{place.policy})"),
            ]
    return insertions, missing


def _constrained(
    source: _Source,
    constraints: Sequence[SiteConstraint],
    recomputed: Sequence[_Checkpoint],
    program: Program,
    *,
    constrain: str,
) -> tuple[str, list[str]]:
    """The new text of a file, and what it leaves out."""
    data, tree = source.text.encode(), syntax.parse(source.text)
    name, _ = spec_name(tree)
    insertions, left_out = _checkpoints(data, tree, recomputed)
    wrapped = set[int]()
    for constraint in constraints:
        spec = constraint_spec(program, constraint, name)
        statements = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt) and _is_site(node, constraint.site)
        ]
        reason = "" if statements else "no statement binds this there"
        for node in statements:
            if isinstance(node, ast.Return):
                value = _returned(node, constraint.site)
                assert value is not None
                reason = _why_not_wrapped(value, wrapped) or reason
                if not reason:
                    begin, end = span(line_starts(data), value)
                    insertions += [
                        Insertion(begin, f"{constrain}("),
                        Insertion(end, f", {spec})"),
                    ]
                    wrapped.add(id(value))
            else:
                bound = constraint.site.name
                insertions.append(_after(data, node, bound, f"{constrain}({bound}, {spec})"))
        if reason:
            left_out.append(f"{constraint_text(program, constraint)}: {reason}")
    if insertions:
        if constraints:
            insertions = [*missing_imports(data, tree), *insertions]
        elif not imports_jax(tree):
            insertions.insert(0, import_lines(data, tree, ["import jax"]))
    return checked(with_insertions(data, insertions)), left_out


def _is_site(node: ast.stmt, site: Site) -> bool:
    """Is this the statement of a site?"""
    if (node.lineno, node.end_lineno) != (site.line, site.end_line):
        return False
    if isinstance(node, ast.Return):
        return not site.name and _returned(node, site) is not None
    return site.name in _bound(node)


def _returned(node: ast.Return, site: Site) -> ast.expr | None:
    """The expression of a returned site; None if the statement has none such."""
    return node.value if site.element < 0 else returned_elements(node).get(site.element)


def _bound(node: ast.stmt) -> list[str]:
    """Names that a statement binds, as written."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
        targets = [node.target]
    else:
        return []
    names = []
    for target in targets:
        elements = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        names += [ast.unparse(element) for element in elements]
    return names


def _after(data: bytes, node: ast.stmt, name: str, value: str) -> Insertion:
    """A statement after an assignment, which constrains what it bound."""
    target = name
    if isinstance(node, ast.Assign) and len(node.targets) > 1:  # a = b = ...: both are the same
        target = " = ".join(ast.unparse(each) for each in node.targets)
    statement = f"{target} = {value}"
    starts = line_starts(data)
    start, end = span(starts, node)
    next_line = starts[node.end_lineno or 0]
    before = data[starts[node.lineno - 1] : start]
    behind = data[end:next_line].strip()
    if before.strip() or (behind and not behind.startswith(b"#")):
        # It shares its lines with others, or is the body of ``if c: x = ...``
        return Insertion(end, f"; {statement}")
    ending, line = line_end(data), before.decode() + statement
    if not data[:next_line].endswith((b"\n", b"\r")):  # the end of the file
        return Insertion(next_line, ending + line)
    return Insertion(next_line, line + ending)


def _why_not_wrapped(value: ast.expr, wrapped: set[int]) -> str:
    if id(value) in wrapped:
        return "another constraint of the plan stands there"
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func).rpartition(".")[2]
        if called in ("with_sharding_constraint", "reshard"):
            return "the source has a constraint there already: change that one"
    return ""
