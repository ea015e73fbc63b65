"""No two files of the package import each other, directly or through others.

Every import counts: at the top, inside functions, for type checkers only, and by name in a string.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from pathlib import Path

import networkx

PACKAGE = Path(__file__).parents[1] / "toast_lab"

# Files with tables of names, whose modules are loaded on demand: only their own imports at the top
# count.
TABLES = {
    "toast_lab": "the public names, from everywhere",
    "toast_lab.models.registry": "the built-in models, each of which knows the registry's types",
}


def modules() -> dict[str, Path]:
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported(tree: ast.Module, known: Container[str], *, table: bool = False) -> Iterator[str]:
    """The modules that a file imports or names in strings; of a table only its own imports."""
    for node in tree.body if table else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports would be missed"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # "toast_lab.x.y" and "toast_lab.x.y:function", for import_module and run_in_child
            yield node.value.partition(":")[0]


def graph() -> networkx.DiGraph:
    known = modules()
    arrows = networkx.DiGraph()
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        others = set(imported(tree, known, table=name in TABLES)) - {name}
        arrows.add_edges_from((name, other) for other in others & set(known))
    return arrows


def cycles(arrows: networkx.DiGraph) -> list[str]:
    """One cycle, as text, for each part of the graph that has any."""
    ways = []
    for part in networkx.strongly_connected_components(arrows):
        if len(part) > 1:
            around = [start for start, _ in networkx.find_cycle(arrows.subgraph(sorted(part)))]
            ways.append(f"{' -> '.join([*around, around[0]])} (of {', '.join(sorted(part))})")
    return sorted(ways)


def test_no_file_needs_itself_through_others() -> None:
    arrows = graph()
    assert len(arrows) > 300
    assert not cycles(arrows)


def test_a_circle_is_found_and_named() -> None:
    arrows = networkx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])
    (way,) = cycles(arrows)
    assert way.endswith("(of a, b, c)")
    source = "import a\nif b:\n from toast_lab.b import c\nd = 'toast_lab.e:f'"
    assert set(imported(ast.parse(source), {"toast_lab.b"})) == {"a", "toast_lab.b", "toast_lab.e"}
    assert set(imported(ast.parse(source), {"toast_lab.b"}, table=True)) == {"a"}
