"""The documentation's site builds without warnings, and requests nothing from other hosts.

These tests are skipped without the extra ``docs``; `make docs` builds the same site.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.building import LACKING, built

pytestmark = pytest.mark.skipif(bool(LACKING), reason="needs the extra docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory)


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    loads = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|"
        r"<link\b(?=[^>]*rel=\"(?:stylesheet|preconnect|icon)\")[^>]*href=\"(?:https?:)?//"
    )
    assert not [page.name for page in pages if loads.search(page.read_text())]


def test_reference_and_notebooks_are_found_by_the_search(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert any(
        "analyse" in entry["title"] and "reference/" in entry["location"] for entry in entries
    )
    assert any("tutorials/00" in entry["location"] for entry in entries)
    assert "Budget" in (site / "reference" / "search.html").read_text()
    assert (
        '<img alt="toast_lab.views.graph'
        in (site / "tutorials" / "00_toast_from_nothing.html").read_text()
    )


def test_fields_of_public_types_are_described(site: Path) -> None:
    """The ``#:`` comments, which have shapes and units, appear in the reference."""
    prices = (site / "reference" / "prices.html").read_text()
    assert "Op at which memory peaks" in prices
    assert "bytes alive at each op" in prices


def test_examples_are_shown(site: Path) -> None:
    for page in ("models", "analysis", "prices", "search", "plans", "execution", "errors"):
        assert "Examples:" in (site / "reference" / f"{page}.html").read_text(), page
