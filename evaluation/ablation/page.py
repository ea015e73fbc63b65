"""The page of what each rule is good for, made from ``ablation.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation import pages
from evaluation.ablation import ties
from evaluation.ablation.judged import Subject, choices, figures, judged, subjects, worse_without
from evaluation.ablation.rows import ALL_RULES, ROWS
from evaluation.corpus import compiled
from evaluation.corpus.judged_plans import pairs
from evaluation.corpus.targets import CLOCKED
from evaluation.row_files import Row, read_rows
from toast_lab.files import write_whole

PAGE = pages.DOCS / "ablation.md"
BEYOND_NOISE = 0.9  #: share of the draws of programs in which a change goes the same way
_HEAD = (">rank", ">regret", ">peak", ">time", ">choices")


def write() -> None:
    """Write the parts of the page that rows decide."""
    text = pages.with_part(PAGE.read_text(encoding="utf-8"), "ties", ties.lines(pairs()))
    write_whole(PAGE, pages.with_part(text, "ablation", lines()))


def lines() -> list[str]:
    """A table for each target and state of the code, the latest first."""
    rows, text = read_rows(ROWS), list[str]()
    groups = subjects(rows, compiled.rows())
    states = list(dict.fromkeys(row["state"] for row in reversed(rows)))
    for state in states:
        own = [row for row in rows if row["state"] == state]
        text += ["", f"## {_title(own)}"]
        for topology in CLOCKED:
            if (topology, state) in groups:
                text += ["", *_table(topology, groups[topology, state])]
    return text[1:]


def _title(rows: Sequence[Row]) -> str:
    dates = sorted({row["date"] for row in rows})
    n_rules = sum(rule != ALL_RULES and not _is_set(rule) for rule in {row["rule"] for row in rows})
    return f"{n_rules} rules, priced on {' and '.join(dates)}"


def _table(topology: str, by_rule: dict[str, list[Subject]]) -> list[str]:
    every = by_rule[ALL_RULES]
    n_plans = sum(len(each.before) for each in every)
    n_held_out = sum(each.is_held_out for each in every)
    columns = (
        "left out",
        *(f"{name}, held out" for name in _HEAD),
        *_HEAD,
        ">times changed",
        ">peaks changed",
    )
    cells = [
        (_name(rule), *_cells(members))
        for rule, members in by_rule.items()
        if len(members) == len(every)
    ]
    return [
        f"### {topology}",
        "",
        f"{len(every)} programs with {n_plans} plans; {n_held_out} programs are held out.",
        "",
        *pages.table(columns, cells),
    ]


def _name(rule: str) -> str:
    if rule == ALL_RULES:
        return "nothing"
    return rule if _is_set(rule) else f"`{rule}`"


def _is_set(rule: str) -> bool:
    """Sets of rules have names of several words."""
    return " " in rule


def _cells(every: Sequence[Subject]) -> list[str]:
    cells = list[str]()
    for part in ([each for each in every if each.is_held_out], every):
        without = figures([judged(each.after) for each in part])
        shares = worse_without(part)
        forms = (".3f", ".1%", ".1%", ".1%")
        cells += [
            _marked(f"{value:{form}}", share)
            for value, share, form in zip(without, shares, forms, strict=True)
        ]
        better, worse = choices(part)
        cells.append(f"{better} : {worse}")
    for quantity in ("time_s", "peak_bytes"):
        plans = [each.changed(quantity) for each in every]
        cells.append(f"{sum(plans)} in {sum(map(bool, plans))}")
    return cells


def _marked(text: str, share: float) -> str:
    """Bold: the rule is of use beyond noise; italics: it does harm beyond noise."""
    if share >= BEYOND_NOISE:
        return f"**{text}**"
    return f"*{text}*" if share <= 1.0 - BEYOND_NOISE else text
