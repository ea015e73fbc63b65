"""Numbers as text for the cells of tables."""

from __future__ import annotations


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}%"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
