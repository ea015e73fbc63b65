"""Written plans, made by hand for the tests of exports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import toast_lab as tl
from toast_lab.export.written_patch import digest
from toast_lab.ir.sites import Site
from toast_lab.written.written_plan import ShardingRule, SiteConstraint, WrittenPlan

MESH = {"data": 4, "model": 2}
Spec = tuple[tuple[str, ...], ...]


def written_plan(
    model: tl.Model,
    rules: Mapping[str, Spec],
    constraints: Iterable[tuple[Site, Spec]] = (),
    *,
    mesh: Mapping[str, int] = MESH,
) -> WrittenPlan:
    """A plan with these rules (pattern -> spec) and constraints; its price means nothing."""
    problem = tl.Problem(tl.analyse(model), dict(mesh), "cpu")
    paths = model.program.value_name[: model.program.n_arguments]
    decided: set[int] = set()
    written_rules = []
    for pattern, spec in rules.items():
        matching = [i for i, path in enumerate(paths) if re.search(pattern, path)]
        arguments = tuple(i for i in matching if i not in decided)
        decided.update(arguments)
        written_rules.append(ShardingRule(pattern, "", spec, arguments))
    plan = tl.replicated(problem)
    rows = tuple(SiteConstraint(site, spec) for site, spec in constraints)
    files = {row.site.file for row in rows}
    return WrittenPlan(
        problem=problem,
        rules=tuple(written_rules),
        constraints=rows,
        plan=plan,
        cost=tl.price(problem, plan),
        digests={file: digest(text_of(file)) for file in files},
    )


def text_of(file: str) -> str:
    """The text of a file with its own line ends."""
    return Path(file).read_bytes().decode()


def site_at(file: Path, text: str, name: str, **fields: Any) -> Site:
    """The site at the only line of a file that contains ``text``."""
    lines = text_of(str(file)).splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    given = {
        "file": str(file),
        "line": number,
        "end_line": number,
        "name": name,
        "function": "step",
        "text": lines[number - 1].strip(),
        "rank": 2,
        "values": (),
        "cotangents": (),
    }
    return Site(**(given | fields))
