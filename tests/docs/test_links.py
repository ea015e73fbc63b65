"""Links in the documents resolve to files, pictures and headings; the site is not built."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

import toast_lab

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "toast_lab" / "README.md",
    *sorted((ROOT / "evaluation").rglob("README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURE_BYTES = 400_000  #: the most that a picture of a page may have
SITE = runpy.run_path(str(ROOT / "scripts" / "docs_site.py"))


def prose(path: Path) -> str:
    """The text of a document without its code."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    else:
        text = path.read_text()
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ +(.*)$", path.read_text(), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.strip().replace(" ", "-") for text in words}


def broken_links(path: Path) -> list[str]:
    """The links and pictures of a document whose target does not exist."""
    broken = []
    name = path.name
    links = re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", prose(path))
    for target, anchor in links:
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (path.parent / target).resolve() if target else path
        if target.startswith("/") or not file.exists():
            broken.append(f"{name}: {target}")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            broken.append(f"{name}: {target}#{anchor}")
    return broken


def test_links_and_pictures_resolve() -> None:
    assert len(NOTEBOOKS) >= 5
    assert not [link for path in [*PAGES, *NOTEBOOKS] for link in broken_links(path)]


@pytest.mark.parametrize("link", ["[a](no.md)", "![a](no.png)", "[a](#no)", "[a](/docs)"])
def test_what_leads_nowhere_is_named(link: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{link} [b](page.md#title)\n")
    assert len(broken_links(page)) == 1


def pictures() -> list[Path]:
    """Every picture file of the documents."""
    suffixes = {".png", ".webp", ".svg", ".jpg"}
    return [file for file in (ROOT / "docs").rglob("*") if file.suffix in suffixes]


def test_pictures_are_small() -> None:
    assert ROOT / "docs" / "pictures" / "conflict.png" in pictures()
    assert not [file for file in pictures() if file.stat().st_size > PICTURE_BYTES]


def test_every_picture_is_shown_by_a_page() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page.read_text())
    }
    assert not [file.name for file in pictures() if file not in shown]


def test_the_pictures_of_the_explorer_are_those_that_its_command_takes() -> None:
    pytest.importorskip("playwright")
    pytest.importorskip("PIL")
    from tests.browser import screens

    kept = {file.stem for file in (ROOT / "docs" / "screens").iterdir()}
    assert kept == set(screens.STEPS)


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = set(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    reference = {f"reference/{title.lower()}.md" for title in SITE["REFERENCE"]}
    assert listed == pages | reference | set(SITE["BORROWED"].values())


def test_the_reference_has_every_public_name_once() -> None:
    names = [name for page in SITE["REFERENCE"].values() for name in page]
    assert len(names) == len(set(names))
    assert set(names) == set(toast_lab.__all__) - {"__version__"}


@pytest.mark.parametrize("name", sorted(set(toast_lab.__all__) - {"__version__", "views"}))
def test_every_public_name_is_documented(name: str) -> None:
    text = getattr(toast_lab, name).__doc__ or ""
    assert len(text) > 10, f"tl.{name} says nothing of itself"
