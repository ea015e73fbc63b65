"""The picture of the rooms shows today's imports, and the walk through a price has its numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import toast_lab as tl
from scripts import architecture

ROOT = Path(__file__).parents[2]


def test_the_picture_has_the_arrows_of_the_imports() -> None:
    drawn = set(re.findall(r'id="(\w+)-&gt;(\w+)"', architecture.PICTURE.read_text()))
    assert drawn == set(architecture.arrows(architecture.rooms()).edges), (
        "python scripts/architecture.py"
    )


def test_the_table_has_every_room_and_the_files_to_start_with_exist() -> None:
    package = ROOT / "toast_lab"
    lines = (package / "README.md").read_text().splitlines()
    rows = {match[1]: line for line in lines if (match := re.match(r"\| `(\w+)/`", line))}
    rooms = {file.parent.name for file in package.glob("*/__init__.py")}
    assert rows.keys() == rooms
    named = {(room, file) for room in rows for file in re.findall(r"`([\w/]+\.py)`", rows[room])}
    assert not [
        (room, file)
        for room, file in sorted(named)
        if not (package / room / file).exists() and not (package / file).exists()
    ]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    listed = text.partition("follow the data:")[2].partition("[toast_lab")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == rooms


def test_the_walk_through_a_price_has_its_numbers() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    cost = tl.price(names["problem"], names["plan"])
    first, gather = cost.ops[0], cost.collectives[0]
    assert f"{first.flops:,.0f} FLOPs, {first.moved_bytes:,.0f} bytes moved" in text
    assert f"{first.time_s * 1e6:.3f} µs, by {first.source}" in text
    moved_s = first.moved_bytes / (819e9 * 0.75)
    assert first.time_s == pytest.approx(moved_s + 1e-6)
    assert f"= {moved_s * 1e6:.3f} µs" in text
    assert f"{gather.time_s * 1e6:.3f} µs" in text
    assert f"{cost.compute_s * 1e6:.0f} µs of computing and {cost.comm_s * 1e6:.0f} µs" in text
