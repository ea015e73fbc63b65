"""Write environment.yml, for users of conda, from pyproject.toml: `make environment`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "environment.yml"
EXTRAS = ("models", "app", "notebooks", "bench", "examples", "dev")

HEAD = """\
# For users of conda, mamba or micromamba:
#   conda env create -f environment.yml && conda activate toast-lab && pip install --no-deps -e .
# `make environment` wrote this from pyproject.toml: the core and the extras
# {extras}.
# `make` needs none of it: it makes its own .venv, with the exact versions of constraints.txt.
name: {name}
channels:
  - conda-forge
dependencies:
  - python{python}
  - pip
  - pip:
"""


def environment(project: dict[str, Any]) -> str:
    """The text of environment.yml for the table ``project`` of pyproject.toml."""
    lines = [
        HEAD.format(
            extras=", ".join(EXTRAS), name=project["name"], python=project["requires-python"]
        )
    ]
    written: set[str] = set()
    extras = {extra: project["optional-dependencies"][extra] for extra in EXTRAS}
    for title, requirements in {"core": project["dependencies"], **extras}.items():
        # Requirements on our own extras are left out, since each extra has its own heading
        own = [text for text in requirements if not text.startswith(f"{project['name']}[")]
        new = [text for text in own if text not in written]
        if new:
            lines.append(f"      # {title}\n")
            lines += [f"      - {text}\n" for text in new]
            written.update(new)
    return "".join(lines)


if __name__ == "__main__":
    FILE.write_text(environment(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]))
