"""PartitionSpecs as people write them in their source: ``P("data", None, "model")``."""

from __future__ import annotations

from toast_lab.ir.program import Program
from toast_lab.lowering.specs import spec_entries, visible
from toast_lab.sharding.plan import Spec
from toast_lab.written.written_plan import SiteConstraint


def spec_text(spec: Spec, *, short: bool = False, name: str = "P") -> str:
    """``P("data", None, ("a", "b"))``; ``short`` leaves out dims at the end that are whole."""
    entries = list(spec_entries(spec))
    while short and entries and entries[-1] is None:
        entries.pop()
    return f"{name}({', '.join(map(_entry_text, entries))})"


def constraint_spec(program: Program, constraint: SiteConstraint, name: str = "P") -> str:
    """The spec of a constraint, for the dims that the user's code has."""
    spec = constraint.spec
    if constraint.site.values:
        spec = visible(program, constraint.site.values[0], spec)
    return spec_text(spec, name=name)


def _entry_text(entry: object) -> str:
    if isinstance(entry, tuple):
        return f"({', '.join(map(_entry_text, entry))})"
    return "None" if entry is None else f'"{entry}"'


def constraint_text(program: Program, constraint: SiteConstraint) -> str:
    """``model.py:31  x: P("data", None)``."""
    site = constraint.site
    function = site.function.rpartition(".")[2]
    subject = site.name or f"{site.target} of {function}"
    return f"{site.where}  {subject}: {constraint_spec(program, constraint)}"
