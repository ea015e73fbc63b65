"""Draw the rooms of the package and what they import: ``python scripts/architecture.py``.

The picture, ``docs/pictures/rooms.svg``, is made from the imports. A room stands above all that it
imports. An arrow is left out where a longer way leads to the same room; numbers are lines of
Python. ``tests/docs/test_architecture.py`` compares the picture with the imports of the day.
"""

from __future__ import annotations

from pathlib import Path

import grimp
import networkx as nx

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
PACKAGE = "toast_lab"
WIDTH, ROW = 12.0, 0.72  #: inches: of the picture, of a level of rooms


def rooms() -> nx.DiGraph:
    """The folders of the package, with an arrow from each to those that it imports."""
    modules = grimp.build_graph(PACKAGE)
    folders = {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(folders))
    for module in modules.modules:
        for imported in modules.find_modules_directly_imported_by(module):
            above, below = (name.split(".")[1] for name in (f"{module}.", f"{imported}."))
            if above != below and {above, below} <= folders:
                graph.add_edge(above, below)
    return graph


def arrows(graph: nx.DiGraph) -> nx.DiGraph:
    """The graph without the arrows that follow from others.

    Raises:
        networkx.NetworkXError: the rooms import each other in a circle.
    """
    return nx.transitive_reduction(graph)


def line_count(room: str) -> int:
    """Lines of Python in a room."""
    files = (ROOT / PACKAGE / room).rglob("*.py")
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def draw(path: Path) -> None:
    """Draw the picture into a file. Each arrow has its two rooms as its id: ``cost->ir``."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    shown = arrows(rooms())
    # From below: a room stands one level above the highest of those that it imports
    levels = list(nx.topological_generations(shown.reverse()))
    places = {}
    for height, level in enumerate(levels):
        # Rooms stand above what they import, as far as there is room beside each other
        ordered = sorted(level, key=lambda room: (_mean_place(shown, room, places), room))
        for number, room in enumerate(ordered):
            places[room] = ((number + 0.5) / len(ordered), height)
    with plt.rc_context({"svg.hashsalt": PACKAGE, "svg.fonttype": "none", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(WIDTH, ROW * len(levels)))
        for above, below in sorted(shown.edges):
            arrow = axes.annotate(
                "",
                xy=(places[below][0], places[below][1] + 0.34),
                xytext=(places[above][0], places[above][1] - 0.34),
                arrowprops={"arrowstyle": "-|>", "color": "#8a96a5", "linewidth": 0.8},
            )
            arrow.arrow_patch.set_gid(f"{above}->{below}")
        for room, (x, y) in places.items():
            axes.text(
                x,
                y,
                f"{room}\n{round(line_count(room), -2):,}",
                ha="center",
                va="center",
                linespacing=1.15,
                bbox={"boxstyle": "round,pad=0.35", "facecolor": "#eef3f9", "edgecolor": "#5b6675"},
            )
        axes.set(xlim=(0, 1), ylim=(-0.6, len(levels) - 0.4))
        axes.axis("off")
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _mean_place(graph: nx.DiGraph, room: str, places: dict[str, tuple[float, float]]) -> float:
    below = [places[imported][0] for imported in graph.successors(room)]
    return sum(below) / len(below) if below else 0.5


if __name__ == "__main__":
    draw(PICTURE)
    print(PICTURE.relative_to(ROOT))
