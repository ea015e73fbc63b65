"""No file of the package needs, directly or through others, a file that needs it.

Every import counts: at the top, inside functions, for type checkers alone, and by text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx

PACKAGE = Path(__file__).parents[1] / "toast_lab"

# What one file may name though it is above: each is a table of names that are loaded on demand, by
# whoever asks for a name in it.  (file, what it may import by a text that it puts together)
TABLES = {
    "toast_lab": "the public names, from everywhere",
    "toast_lab.app.cells": "the views for notebooks, of its own files",
    "toast_lab.cli": "the commands, by their names",
    "toast_lab.frontends": "the frontends' public functions, of its own files",
    "toast_lab.isolate": "whatever a child is told to run",
    "toast_lab.frontends.loading": "the user's own module:make",
    "toast_lab.models.registry": "the built-in models, by their names",
    "toast_lab.prepare": "what is compiled ahead, by its method's name",
    "toast_lab.search.methods": "the methods, by their names",
    "toast_lab.sweep.local": "what a worker is told to run",
}


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """Files of the package that a file imports, in any way, and texts that name one of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # "toast_lab.x.y" and "toast_lab.x.y:function", as import_module and run_in_child take
            yield node.value.partition(":")[0]


def graph() -> networkx.DiGraph:
    known = modules()
    arrows = networkx.DiGraph()
    arrows.add_nodes_from(known)
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        if name not in TABLES:
            arrows.add_edges_from(
                (name, other)
                for other in imported(name, tree, known)
                if other in known and other != name
            )
    return arrows


def cycles(arrows: networkx.DiGraph) -> list[str]:
    """One shortest way around in each part of the graph where there is one, as text."""
    ways = []
    for part in networkx.strongly_connected_components(arrows):
        if len(part) > 1:
            around = min(networkx.simple_cycles(arrows.subgraph(part), 6), key=len, default=None)
            around = around or [edge[0] for edge in networkx.find_cycle(arrows.subgraph(part))]
            ways.append(f"{' -> '.join([*around, around[0]])}  (of {len(part)}: {sorted(part)})")
    return sorted(ways)


def test_no_file_needs_itself_through_others() -> None:
    assert not cycles(graph())
