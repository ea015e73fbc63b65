"""``tl.explore`` inside JupyterLab: the same explorer in a cell."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

pytest.importorskip("jupyterlab")
pytestmark = pytest.mark.browser

CONFIG = """
c = get_config()
c.ServerApp.ip = "127.0.0.1"
c.ServerApp.open_browser = False
c.ServerApp.allow_root = True
c.IdentityProvider.token = ""
c.ServerApp.disable_check_xsrf = True
c.ServerApp.root_dir = {root!r}
c.LabApp.check_for_updates_class = "jupyterlab.handlers.announcements.NeverCheckForUpdate"
c.LabApp.news_url = None
"""


def notebook(source: str) -> str:
    cell = {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": [], "source": source}
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return json.dumps({"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5})


def test_explore_in_jupyterlab(served: Callable[..., str], page: Page, tmp_path: Path) -> None:
    source = "import toast_lab as tl\ntl.explore('attention')"
    (tmp_path / "explore.ipynb").write_text(notebook(source))
    (tmp_path / "config.py").write_text(CONFIG.format(root=str(tmp_path)))
    here = str(Path(__file__).parents[2])
    words = [sys.executable, "-m", "jupyterlab", "--config", str(tmp_path / "config.py"), "--port", "{port}"]
    folders = {"CONFIG_DIR": "", "DATA_DIR": "data", "RUNTIME_DIR": "run"}
    env = {"PYTHONPATH": here, **{f"JUPYTER_{k}": str(tmp_path / v) for k, v in folders.items()}}
    outside: list[str] = []
    page.on("request", lambda r: outside.append(r.url) if re.match(r"https?://(?!127\.0\.0\.1)", r.url) else None)
    page.goto(served(command=words, env=env) + "/lab/tree/explore.ipynb")
    expect(page.locator(".jp-Cell").first).to_be_visible(timeout=60_000)
    expect(page.get_by_text(re.compile("Python 3.*Idle")).first).to_be_visible(timeout=60_000)
    page.locator(".jp-Cell").first.click()
    page.keyboard.press("Shift+Enter")
    cell = page.frame_locator("iframe[title='TOAST Lab']")
    expect(cell.get_by_text("31 nodes")).to_be_visible(timeout=90_000)
    cell.get_by_role("button", name=re.compile("Compare & run")).click()
    expect(cell.locator(".tabulator-row", has_text="unsharded").first).to_be_visible()
    assert not outside, outside
