"""What pyproject.toml cannot say: README.md as a package index can show it.

An index knows neither the folder of this file nor a public address of the project, so pictures are
left out and links to files become the names of these files.
"""

import re
from pathlib import Path

from setuptools import setup


def for_an_index(text: str) -> str:
    """README.md without what only its folder can resolve."""
    without_pictures = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n\n?", "", text, flags=re.MULTILINE)

    def named(match: re.Match[str]) -> str:
        words, target = match.groups()
        return words if words == target else f"{words} (`{target}`)"

    return re.sub(r"\[([^\]]*)\]\((?!https?://)([^)#]*)[^)]*\)", named, without_pictures)


setup(
    long_description=for_an_index((Path(__file__).parent / "README.md").read_text()),
    long_description_content_type="text/markdown",
)
