"""The plan panel: a plan in one sentence, three numbers and what a reader asks first.

It is drawn once, here, for the report, the pages of the explorer and the cells of notebooks. Start
reading at ``plan_panel``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from toast_lab.cost.problem import Cost, Problem
from toast_lab.explain.board import Board, conflicts
from toast_lab.report import prose
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.views.compare_table import bytes_text, seconds_text
from toast_lab.views.markup import Safe, h, join
from toast_lab.views.page_colours import DARK, LIGHT, properties
from toast_lab.written.traits import plan_paragraph, plan_words

#: What styles the panel; it takes its colours from the page.
CSS = (files("toast_lab.report") / "static" / "plan_panel.css").read_text(encoding="utf-8")


class Tile(NamedTuple):
    """A number of a plan, and what it is compared with."""

    title: str
    value: str
    remarks: tuple[str, ...]


class Rival(NamedTuple):
    """The best other plan that is known."""

    name: str
    cost: Cost


def best_of(others: Iterable[Any]) -> Rival | None:
    """The best plan that fits, of any with a ``name`` and a ``cost``; None if none does."""
    fitting = [other for other in others if other.cost.fits]
    best = min(fitting, key=lambda other: float(other.cost.score), default=None)
    return None if best is None else Rival(best.name, best.cost)


def plan_panel(
    problem: Problem,
    plan: ShardingPlan,
    cost: Cost,
    *,
    board: Board | None = None,
    best: Rival | None = None,
    tiles: Sequence[Tile] = (),
    points: Sequence[tuple[str, object]] = (),
) -> Safe:
    """A plan for somebody who reads no further.

    Args:
        problem: the problem of the plan.
        plan: the plan.
        cost: its price.
        board: the conflicts of the problem; by default they are listed here.
        best: the plan that the numbers are compared with, beside the unsharded program.
        tiles: further numbers.
        points: further (topic, text) pairs.
    """
    own_tiles = _tiles(problem, cost, best)
    topics = [
        ("What it is", plan_paragraph(plan_words(problem, plan, cost), 10**6)),
        *prose.plan_points(problem, plan, cost, conflicts(problem) if board is None else board),
        *points,
    ]
    return h(
        "div",
        prose.headline(problem, cost),
        h("div", *map(_drawn, [*own_tiles, *tiles]), cls="tiles"),
        h("dl", *[join(h("dt", topic), h("dd", text)) for topic, text in topics], cls="points"),
        cls="plan-panel",
    )


def styled(panel: Safe) -> Safe:
    """A panel with its style, for pages that do not have ours, such as notebooks."""
    light, dark = properties(LIGHT), properties(DARK)
    style = (
        f".plan-panel {{ {light} }} @media (prefers-color-scheme: dark) {{ .plan-panel {{ {dark} }}"
        f" }}\n{CSS}"
    )
    return Safe(f"<style>{style}</style>{panel}")


def _tiles(problem: Problem, cost: Cost, best: Rival | None) -> list[Tile]:
    """The step, the memory and what is sent, each against unsharded and the best plan."""
    base_s, base_bytes = problem.baseline
    limit = cost.memory_limit_bytes
    share = (
        f": {cost.peak_bytes / limit:.0%} of {bytes_text(limit)}" if math.isfinite(limit) else ""
    )
    count = len(cost.collectives)
    step = [f"{_speed(base_s, cost.time_s)} ({seconds_text(base_s)})"]
    memory = [
        f"{'✓ fits' if cost.fits else '✗ does not fit'}{share}",
        f"one device: {bytes_text(base_bytes)}",
    ]
    sent = [
        f"{count:,} collective{'' if count == 1 else 's'}, {seconds_text(cost.comm_s)}"
        + (f", {cost.comm_s / cost.time_s:.0%} of the step" if cost.time_s else "")
    ]
    # Unsharded stands there already
    if best is not None and (best.cost.time_s, best.cost.peak_bytes) != problem.baseline:
        step.append(f"{best.name}: {seconds_text(best.cost.time_s)}")
        memory.append(f"{best.name}: {bytes_text(best.cost.peak_bytes)}")
        sent.append(f"{best.name}: {bytes_text(best.cost.sent_bytes)}")
    return [
        Tile("step, estimated", seconds_text(cost.time_s), tuple(step)),
        Tile("memory of a device", bytes_text(cost.peak_bytes), tuple(memory)),
        Tile("sent by a device", bytes_text(cost.sent_bytes), tuple(sent)),
    ]


def _speed(base_s: float, time_s: float) -> str:
    return f"{base_s / time_s:.3g}× as fast as one device" if time_s else "one device"


def _drawn(tile: Tile) -> Safe:
    remarks = [
        h("span", remark, cls="bad" if remark.startswith("✗") else "quiet")
        for remark in tile.remarks
    ]
    return h(
        "div",
        h("div", h("span", tile.title, cls="quiet"), h("b", tile.value, cls="big")),
        h("div", *remarks),
        cls="tile",
    )
