"""The package as a user receives it, before any code runs.

Its files agree, importing it is light, and nothing is tied to one machine.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import toast_lab

ROOT = Path(__file__).parents[1]
STAGES = [
    "ir",
    "nda",
    "conflicts",
    "sharding",
    "machines",
    "cost",
    "search",
    "lowering",
    "runtime",
    "models",
    "sweep",
    "views",
    "jobs",
    "app",
]
HEAVY = [
    "jax",
    "jaxlib",
    "numba",
    "scipy",
    "networkx",
    "torch",
    "panel",
    "bokeh",
    "holoviews",
    "matplotlib",
    "pandas",
]
# Written in two parts, so that this file does not contain what it searches for.
HOSTS = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "pytorch" + ".org/whl",
    "anaconda" + ".org",
    "npmjs" + ".",
    "ghcr" + ".io",
    "docker" + ".io",
    "--extra-index" + "-url",
    "--index" + "-url",
    "--find" + "-links",
]
MACHINE_PATH = re.compile(
    r"(?<![\w.~$}/-])/(?:work|root|home/\w+|Users/\w+|opt/\w+|tmp/v)(?:/|\b(?![-\w]))"
)


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def expand(requirements: list[str]) -> dict[str, str]:
    """The names and versions required, with `toast-lab[extra]` replaced by its packages."""
    versions: dict[str, str] = {}
    for text in requirements:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == "toast-lab":
            for extra in requirement.extras:
                versions |= expand(project()["optional-dependencies"][extra])
        else:
            versions[canonicalize_name(requirement.name)] = str(requirement.specifier)
    return versions


def extras(*names: str) -> dict[str, str]:
    return expand([text for name in names for text in project()["optional-dependencies"][name]])


def changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text()


def pins(*, newest: bool = False) -> list[Requirement]:
    """The versions installed together; ``newest`` replaces some by their newest releases."""
    tested = pins_of("constraints.txt")
    replaced = pins_of("constraints-newest.txt") if newest else []
    names = {pin.name for pin in replaced}
    return [pin for pin in tested if pin.name not in names] + replaced


def pins_of(name: str) -> list[Requirement]:
    lines = (line.strip() for line in (ROOT / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def jax_versions() -> set[str]:
    """The tested versions of jax."""
    both = [*pins(), *pins(newest=True)]
    return {str(pin.specifier).removeprefix("==") for pin in both if pin.name == "jax"}


def committed_texts() -> dict[str, str]:
    """Every text file that git tracks or would add; outside git, every file not hidden."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if "/." not in path.relative_to(ROOT).as_posix()]
    texts = {}
    for path in paths:
        try:
            texts[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    return texts


def test_environment_yml_names_what_pyproject_names() -> None:
    import yaml

    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    plain = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert environment["name"] == project()["name"]
    assert plain == [f"python{project()['requires-python']}", "pip"]
    assert len(pip) == len(expand(pip)), "a package is named twice"
    assert expand(pip) == expand(project()["dependencies"]) | extras("app", "notebooks", "dev")


def test_environment_yml_is_what_the_command_writes() -> None:
    command = runpy.run_path(str(ROOT / "scripts" / "environment.py"))
    written = (ROOT / "environment.yml").read_text()
    assert written == command["environment"](project()), "run `make environment`"


def test_the_version_has_one_source_and_the_changelog_knows_it() -> None:
    assert "version" in project()["dynamic"]
    assert "version" not in project()
    dates = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", changelog(), re.MULTILINE)
    assert dates[0] == toast_lab.__version__
    assert dates == sorted(dates, key=Version, reverse=True)


def test_the_changelog_keeps_to_the_usual_headings() -> None:
    usual = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    headings = re.findall(r"^### (.*)$", changelog(), re.MULTILINE)
    assert headings
    assert set(headings) <= usual
    assert changelog().startswith("# Changelog\n")
    assert "\n## [Unreleased]\n" in changelog()


def test_the_core_imports_no_package_of_an_extra() -> None:
    """Only models that are trained need an optimiser, and their error names its extra."""
    code = (
        "import sys; sys.modules['optax'] = None\n"
        "import toast_lab as tl\n"
        "print(tl.load('attention'))\n"
        "try: tl.load('transformer')\n"
        "except tl.ToastError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("attention: 10 ops")
    assert "'transformer' needs optax" in done.stdout
    assert 'pip install "toast-lab[models]"' in done.stdout


def test_metadata_is_whole_and_names_no_place() -> None:
    assert project()["authors"] == [{"name": "TOAST Lab developers"}]
    assert "urls" not in project(), "the package has no public address yet"
    versions = {
        entry.removeprefix("Programming Language :: Python :: ")
        for entry in project()["classifiers"]
        if re.search(r":: 3\.\d+$", entry)
    }
    assert versions == {"3.11", "3.12"}
    assert len(jax_versions()) == len(versions)


@pytest.mark.parametrize(
    ("python", "newest"), [("3.11", False), ("3.12", False), ("3.12", True), ("3.13", True)]
)
def test_constraints_pin_every_direct_dependency_once(python: str, newest: bool) -> None:
    asked_for = extras("app", "notebooks", "dev", "docs", "tpu", "torch")
    wanted = expand(project()["dependencies"]) | asked_for
    seen: dict[str, str] = {}
    for pin in pins(newest=newest):
        if pin.marker is not None and not pin.marker.evaluate({"python_version": python}):
            continue
        name = canonicalize_name(pin.name)
        (only,) = pin.specifier
        assert only.operator == "==", pin
        assert "*" not in only.version, pin
        assert pin.url is None
        assert name not in seen, f"{name} is pinned twice for Python {python}"
        seen[name] = only.version
        if name in wanted:
            asked = Requirement(f"{name}{wanted[name]}").specifier
            assert only.version in asked, f"{pin} is outside of {asked}"
    assert set(wanted) - set(seen) == set()


def test_the_newest_versions_are_newer_ones_of_packages_that_are_pinned() -> None:
    tested = {pin.name: Version(next(iter(pin.specifier)).version) for pin in pins()}
    for pin in pins_of("constraints-newest.txt"):
        assert Version(next(iter(pin.specifier)).version) > tested[pin.name], pin


@pytest.mark.parametrize(("python", "newest"), [("3.11.0", False), ("3.12.0", True)])
def test_pins_take_the_first_release_of_each_python(python: str, newest: bool) -> None:
    """Distributions stay with an early release: Debian 12 has Python 3.11.2."""
    environment = {"python_version": python.rpartition(".")[0]}
    refused = {
        str(pin): wanted
        for pin in pins(newest=newest)
        if (pin.marker is None or pin.marker.evaluate(environment))
        and (wanted := python_wanted(pin))
        and not SpecifierSet(wanted).contains(python)
    }
    assert not refused


def python_wanted(pin: Requirement) -> str | None:
    """A pinned package's requirement of Python; None if that version is not installed."""
    try:
        metadata = importlib.metadata.metadata(pin.name).json
    except importlib.metadata.PackageNotFoundError:
        return None
    # A package that is just being installed or removed may be there without its metadata
    version = metadata.get("version")
    return metadata.get("requires_python") if version and pin.specifier.contains(version) else None


def test_constraints_are_plain() -> None:
    for name in ("constraints.txt", "constraints-newest.txt"):
        text = (ROOT / name).read_text()
        assert "://" not in text
        assert "--" not in text
        assert "sha256" not in text


def test_tested_range_is_told_where_users_look() -> None:
    tested = jax_versions()
    assert len(tested) == 2
    for name in ("README.md", "pyproject.toml", "constraints.txt"):
        text = (ROOT / name).read_text()
        for version in tested:
            assert f"jax {version}" in text, f"{name} does not tell jax {version}"


def test_no_registry_host_and_no_machine_path() -> None:
    offenders = []
    for name, text in committed_texts().items():
        for number, line in enumerate(text.splitlines(), 1):
            hit = next((host for host in HOSTS if host in line), None) or MACHINE_PATH.search(line)
            if hit and name != "LICENSE":
                offenders.append(f"{name}:{number}: {line.strip()[:120]}")
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("line", "hit"),
    [
        ("cd /wor" + "k/main", True),
        ('"/roo' + 't/.cache"', True),
        ("file:///ho" + "me/someone/x", True),
        ("/ho" + "me/someone/x", True),
        ("the network/worker", False),
        ("~/work/x and src/root/y", False),
        ("/workspace", False),
        ("forward/work-efficient", False),
    ],
)
def test_machine_paths_are_recognised(line: str, hit: bool) -> None:
    assert bool(MACHINE_PATH.search(line.replace("file://", " "))) is hit


def test_licence() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert project()["license"] == "Apache-2.0"


def test_imports_stay_light() -> None:
    modules = ["toast_lab", "toast_lab.errors", *(f"toast_lab.{stage}" for stage in STAGES)]
    code = f"import sys, {', '.join(modules)}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_init_is_its_docstring(stage: str) -> None:
    tree = ast.parse((ROOT / "toast_lab" / stage / "__init__.py").read_text())
    text = ast.get_docstring(tree)
    assert text
    assert len(tree.body) == 1, "an import here is how import cycles start"
    for part in ("Takes: ", "Gives: ", "paper", "Start reading at `"):
        assert part in text


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_lets_processes_keep_their_bytecode() -> None:
    command = ["make", "-s", "--eval=asked: ; @env", "asked"]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "PATH=" in done.stdout
    assert "PYTHONDONTWRITEBYTECODE" not in done.stdout


def test_typing_marker_is_shipped() -> None:
    assert (ROOT / "toast_lab" / "py.typed").is_file()
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "py.typed" in setuptools["package-data"]["*"]


def test_every_data_file_is_in_the_wheel(tmp_path: Path) -> None:
    """This includes style sheets and scripts, whose folder is not a package."""
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "toast_lab", tmp_path / "toast_lab", ignore=left_out)
    (tmp_path / "evaluation").mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "evaluation/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    build = "import setuptools.build_meta as backend; backend.build_wheel('.')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    shipped = set(archive.namelist())
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "toast_lab").rglob("*")
        if path.is_file()
        and not any(part.startswith((".", "__py")) for part in path.relative_to(ROOT).parts)
    }
    assert "toast_lab/app/static/text.css" in wanted
    assert wanted - shipped == set()
    top = {name.partition("/")[0] for name in shipped}
    assert {name for name in top if not name.endswith(".dist-info")} == {"toast_lab"}
    (metadata,) = [name for name in shipped if name.endswith(".dist-info/METADATA")]
    check_description(archive.read(metadata).decode())


def check_description(metadata: str) -> None:
    """A package index can show it: the version is ours, and no link needs a checkout."""
    fields, _, text = metadata.partition("\n\n")
    assert f"\nVersion: {toast_lab.__version__}\n" in fields
    assert "\nDescription-Content-Type: text/markdown\n" in f"{fields}\n"
    assert "Author: TOAST Lab developers" in fields
    assert "make explore" in text
    assert "docs/plans.md" in text
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "![" not in prose
    assert re.findall(r"\]\((?!https?://)[^)]*\)", prose) == []
