"""The documentation's site is built without a warning, and asks nothing of other hosts.

Skipped without the extra ``docs``; `make docs` builds the same.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LACKING = [
    name for name in ("mkdocs", "material", "mkdocstrings") if not importlib.util.find_spec(name)
]

pytestmark = pytest.mark.skipif(bool(LACKING), reason="needs the extra docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # Whoever asks for the network gets an answer at once
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    environment = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "WARNING" not in done.stderr
    return folder


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
