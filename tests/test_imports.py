"""No file of the package needs, directly or through others, a file that needs it.

Every import counts: at the top, inside functions, for type checkers alone, and by text.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from pathlib import Path

import networkx

PACKAGE = Path(__file__).parents[1] / "toast_lab"

# Tables of names, which load what they name when somebody asks for it: what counts of such a file
# is what it imports itself, at the top.
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
    """What a file imports, in any way, and what its texts name; of a table what it needs itself."""
    for node in tree.body if table else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports would be missed"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # "toast_lab.x.y" and "toast_lab.x.y:function", as import_module and run_in_child take
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
    """A way around in each part of the graph where there is one, as text."""
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
