"""Prepare README.md for a package index, which pyproject.toml cannot do.

An index knows neither the folder of this file nor a public address of the project, so pictures are
left out, and links to files become the names of these files.
"""

import re
from pathlib import Path

from setuptools import setup


def for_an_index(text: str) -> str:
    """README.md without pictures and without links to files of its folder."""
    without_pictures = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n\n?", "", text, flags=re.MULTILINE)

    def named(match: re.Match[str]) -> str:
        words, target = match.groups()
        return words if words == target else f"{words} (`{target}`)"

    return re.sub(r"\[([^\]]*)\]\((?!https?://)([^)#]*)[^)]*\)", named, without_pictures)


setup(
    long_description=for_an_index((Path(__file__).parent / "README.md").read_text()),
    long_description_content_type="text/markdown",
)
