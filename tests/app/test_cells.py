"""``tl.views`` without a browser.

The tests cover the arguments of the views, what they show without a kernel, and that their numbers
are the API's.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import jax
import pytest

pn = pytest.importorskip("panel")

import toast_lab as tl  # noqa: E402
from tests.helpers import analysed, small_transformer, traced  # noqa: E402
from toast_lab.app import frames  # noqa: E402
from toast_lab.app.cells.program_views import (  # noqa: E402
    BoardCell,
    GraphCell,
    ListingCell,
    TableCell,
)
from toast_lab.app.cells.searching import MAX_POINTS, RaceCell, SearchCell, TreeCell  # noqa: E402
from toast_lab.app.explore import explore  # noqa: E402
from toast_lab.errors import InvalidInput, InvalidProblem  # noqa: E402
from toast_lab.machines.catalogue import machine  # noqa: E402
from toast_lab.search.search_child import ImprovementPoint, MethodOutcome  # noqa: E402
from toast_lab.views.compare_table import time_unit  # noqa: E402

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


@pytest.fixture(scope="module")
def attention() -> tl.Analysis:
    return analysed("attention")


@pytest.fixture(scope="module")
def problem() -> tl.Problem:
    return tl.Problem(small_transformer(), {"data": 2, "model": 2})


@pytest.fixture(scope="module")
def result(problem: tl.Problem) -> tl.SearchResult:
    return tl.search(problem, budget=tl.Budget(seconds=None, evaluations=400))


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def count(self, tag: str, **wanted: str) -> int:
        return sum(
            1
            for t, a in self.found
            if t == tag and all(a.get(k.replace("_", "-")) == v for k, v in wanted.items())
        )


# -- program ---------------------------------------------------------------------------------------
def test_graph(attention: tl.Analysis) -> None:
    view = tl.views.graph(attention)
    assert repr(view) == "toast_lab.views.graph: attn, 31 names, 5 conflicts in 1 compatibility set"
    assert len(view.table) == int((attention.names.size > 1).sum())
    tags = Tags(view.to_html())
    assert tags.count("use") == len(view.table)
    assert "set 0 · 5 conflicts" in tags.text
    assert not tags.count("script")


def test_a_large_graph_is_folded_in_its_static_picture(problem: tl.Problem) -> None:
    view = tl.views.graph(problem.analysis, level="names", conflicts_only=True)
    assert len(view.table) > 50
    assert len(view.to_html()) < 200_000
    named = tl.views.graph(problem.analysis, level="names")
    assert len(named.table) > 400
    assert Tags(named.to_html()).count("use") < 100


def test_the_selection_in_a_graph_cell_is_linked_both_ways(attention: tl.Analysis) -> None:
    cell: GraphCell = tl.views.graph(attention)._make()
    conflict = attention.conflicts[0]
    cell.graph.plot.on_select(conflict.sides, (0,))
    assert cell.listing.pane.chosen == sorted({int(attention.names.op[n]) for n in conflict.sides})
    op = attention.program.n_arguments
    cell.listing.pane.picked = [op, 1]
    assert cell.session.selection.names == tuple(attention.program.factors(op))
    with_problem: GraphCell = tl.views.graph(tl.Problem(attention, {"s": 4}))._make()
    with_problem.session.selection.select((0,))
    with_problem.session.hand.add_action("s", 0)
    assert with_problem.session.hand.actions == ("S@0->s",)


def test_listing(attention: tl.Analysis) -> None:
    view = tl.views.listing(attention)
    text = "".join(Tags(view.to_html()).text)
    assert "a : [S ●, S ●] = matmul(k, qt)" in text
    cell: ListingCell = view._make()
    cell.listing.pane.picked = [5, 1]
    assert "splits" in cell.words.pane.object


def test_conflicts_of_an_analysis_and_of_a_problem(attention: tl.Analysis) -> None:
    view = tl.views.conflicts(attention)
    assert view.table["side 0"].tolist() == [
        attention.name_text[c.sides[0]] for c in attention.conflicts
    ]
    cell: TableCell = view._make()
    cell.clicked(2)
    assert cell.session.selection.conflicts == (2,)
    assert cell.session.selection.names == attention.conflicts[2].sides
    assert "why both dims have one colour" in cell.words.pane.object
    problem = tl.Problem(attention, {"s": 4})
    board = tl.views.conflicts(problem)
    option = tl.conflicts(problem).disputes[0].options[0]
    assert f"{option.time_s * 1e6:.3g} µs" in board.table["s"][0]
    page: BoardCell = board._make()
    page.session.hand.choose_side(0, "s", 1)
    assert page.session.plans.named("manual").plan.actions == ("S@1->s",)
    none = tl.views.conflicts(analysed("mlp"))
    assert "No tensor" in none.to_html()


def test_colours(problem: tl.Problem) -> None:
    analysis = problem.analysis
    view = tl.views.colours(analysis)
    sizes = dict(zip(view.table["colour"], view.table["names"], strict=True))
    assert sizes == {g.name: g.n_names for g in analysis.groups if g.n_names > 1}
    cell: TableCell = view._make()
    cell.clicked(0)
    assert len(cell.session.selection.names) == sum(
        len(analysis.colours[c].names)
        for c in analysis.groups[analysis.group_index(view.table["colour"][0])].colours
    )


def test_names_are_escaped() -> None:
    evil = "<img src=x onerror=alert(1)>"
    analysis = traced(
        lambda x: x @ x.T, jax.ShapeDtypeStruct((8, 4), "float32"), dim_names={"x": (evil, "T")}
    )
    problem = tl.Problem(analysis, {"s": 2})
    plan = tl.Plan.from_actions(problem, [(evil, "s", 0)])
    for view in (
        tl.views.graph(analysis),
        tl.views.listing(analysis),
        tl.views.conflicts(analysis),
        tl.views.conflicts(problem),
        tl.views.colours(analysis),
        tl.views.compare({evil: plan}, problem),
        tl.views.memory({evil: plan}, problem),
        tl.views.tiles(plan),
        tl.views.tree(tl.search(problem, budget=tl.Budget(evaluations=5)), problem),
    ):
        assert not Tags(view.to_html()).count("img"), view
        assert not Tags(view._repr_html_()).count("img"), view


# -- search ----------------------------------------------------------------------------------------
def test_search(result: tl.SearchResult, problem: tl.Problem) -> None:
    view = tl.views.search(result)
    assert "best " in repr(view)
    expected = result.trace.improvements()
    assert view.table["simulation"].tolist() == [s.index for s in expected]
    assert view.table["best_s"].tolist() == [s.time_s for s in expected]
    assert view.table["best_bytes"].iloc[-1] == pytest.approx(result.cost.peak_bytes)
    text = "".join(Tags(view.to_html()).text)
    assert f"{len(result.trace.simulations):,} simulations" in text
    assert result.message in text
    assert Tags(view.to_html()).count("svg") == 2
    for words in ("step (µs), estimated; unsharded ", "simulations", "tried", "best so far"):
        assert words in text, words
    cell: SearchCell = view._make()
    assert list(cell.curves.source.data["simulation"])[-1] == len(result.trace.simulations)
    assert cell.score.lines["mcts"].data["score"][-1] == pytest.approx(result.cost.score)
    # The horizontal line is the problem's unsharded time
    _, time, _ = cell.curves.figures
    spans = [m.location for m in time.renderers if type(m).__name__ == "Span"]
    _, scale = time_unit(problem.baseline[0])
    assert spans[0] * scale == pytest.approx(problem.baseline[0])


def test_tree(result: tl.SearchResult, problem: tl.Problem) -> None:
    view = tl.views.tree(result, problem)
    assert view.table["N"].sum() <= len(result.trace.simulations)
    assert view.table["best C(s)"].min() == pytest.approx(
        min(s.score for s in result.trace.simulations if s.actions), abs=1e-4
    )
    assert Tags(view.to_html()).count("svg") == 1
    assert "unsharded" in view.to_html()
    cell: TreeCell = view._make()
    cell.pane._tapped(1)
    end = time.monotonic() + 30
    while not hasattr(getattr(cell.pane.state.facts(cell.pane._plan), "cost", None), "time_s"):
        assert time.monotonic() < end
        time.sleep(0.02)
    cost = cell.pane.state.facts(cell.pane._plan).cost
    assert cost.time_s == tl.price(problem, tl.Plan.from_actions(problem, cell.pane._plan)).time_s
    bare: TreeCell = tl.views.tree(result)._make()
    assert "Give the problem" in bare.pane.state.facts(()).cost


def test_search_live(problem: tl.Problem) -> None:
    run = tl.start_search(problem, "random", budget=tl.Budget(seconds=600))
    view = tl.views.search(run)
    cell: SearchCell = view._make()
    grown = []
    end = time.monotonic() + 60
    while len(set(grown)) < 3:
        cell.tick()
        grown.append(len(cell.curves.source.data["simulation"]))
        assert time.monotonic() < end
        time.sleep(0.05)
    assert grown == sorted(grown)
    # However long a search runs, the drawn points stay few and include every improvement.
    cell._drawn = [p._replace(improved=False) for p in cell._drawn] * (
        2 * MAX_POINTS // len(cell._drawn) + 2
    )
    cell._drawn[7] = cell._drawn[7]._replace(improved=True, tried_s=12.5)
    _, scale = time_unit(problem.baseline[0])
    # A tick draws only if the cell's beat is due and the search has new reports
    while 12.5 / scale not in list(cell.curves.source.data["tried_s"]):
        assert time.monotonic() < end
        time.sleep(0.02)
        cell.tick()
    assert len(cell.curves.source.data["simulation"]) < 2 * MAX_POINTS
    cell.controls._pause()
    assert run.state == "paused"
    assert cell.controls.pause.name == "Go on"
    cell.controls._pause()
    assert run.state == "searching"
    tree: TreeCell = tl.views.tree(run)._make()
    run.stop()
    result = run.result(60)
    cell.tick()
    tree.tick()
    assert f"{len(result.trace.simulations):,}" in cell._words.object
    assert not cell.controls.view.visible
    assert "random" in view.to_html()


def point(elapsed_s: float, score: float) -> ImprovementPoint:
    return ImprovementPoint(elapsed_s, score, score * 1e-3, 1e6, True, 3, ("a->b",))


def test_race(problem: tl.Problem) -> None:
    outcomes = (
        MethodOutcome(
            "mcts",
            "CONVERGED",
            "ok",
            (point(0.1, 0.9), point(0.4, 0.5)),
            40,
            1.0,
            0.1,
            None,
            ("a->b",),
            None,
        ),
        MethodOutcome(
            "beam", "CRASHED", "it died", (point(0.2, 0.7),), None, 0.5, None, None, ("a->b",), None
        ),
    )
    view = tl.views.race(tl.Race(problem, 0, outcomes))
    assert view.table["best C(s)"].tolist() == ["0.5000", "0.7000"]
    cell: RaceCell = view._make()
    assert list(cell.curves.lines["mcts"].data["score"]) == [0.9, 0.5, 0.5]
    assert "best so far: mcts" in cell._words.object
    assert "beam: it died" in cell._words.object
    cell.kind.value = "time_s"
    assert list(cell.curves.lines["beam"].data["elapsed_s"]) == [0.2, 0.5]
    words = Tags(view.to_html()).text
    assert {"mcts", "seconds of each method's own search"} <= set(words)
    assert "C(s) of the best plan so far, estimated" in words


# -- plans -----------------------------------------------------------------------------------------
def test_compare_and_memory(result: tl.SearchResult, problem: tl.Problem) -> None:
    plan = tl.Plan.from_actions(problem, ["batch->data"])
    plans = {"searched": result, "data": plan}
    view = tl.views.compare(plans, problem)
    cost = tl.price(problem, plan)
    assert view.table["time_s"].tolist() == [result.cost.time_s, cost.time_s]
    assert view.table["peak_bytes"][1] == cost.peak_bytes
    text = "".join(Tags(view.to_html()).text)
    assert f"{cost.count('all_reduce')} AR" in text
    cell = view._make()
    cell.pick(1)
    assert "batch-&gt;data" in cell._words.object
    memory = tl.views.memory(plans, problem)
    assert memory.table["peak_bytes"].tolist() == [result.cost.peak_bytes, cost.peak_bytes]
    assert memory.table["largest_bytes"][1] == cost.at_peak[0].bytes
    words = set(Tags(view.to_html()).text)
    assert {"compute", "all_reduce", "● searched", "■ data"} <= words
    assert any(re.match(r"estimated step time \((µs|ms)\)", text) for text in words)
    words = set(Tags(memory.to_html()).text)
    assert {"program order (op)", "searched", "data"} <= words
    assert any(re.match(r"memory \([KMG]iB\)", text) for text in words)
    page = memory._make()
    assert {"searched", "data"} <= {renderer.name for renderer in page.figure.renderers}
    page.pick(1)
    assert len(page.held.value) == len(cost.at_peak)
    assert repr(tl.views.memory(result)) == "toast_lab.views.memory: 1 plan: mcts"


def comparison(problem: tl.Problem, plan: tl.Plan) -> tl.Comparison:
    from toast_lab.compare.result import Certificate, ComparisonRow, Predicted
    from toast_lab.runtime.hlo import Collective

    cost = tl.price(problem, plan)
    fields: dict[str, Any] = {f: None for f in ComparisonRow.__dataclass_fields__}
    sent = SimpleNamespace(kind="all_reduce", axes=("data",), times=1)
    assert "kind" in Collective._fields
    row = ComparisonRow(
        **{
            **fields,
            "name": "data",
            "status": "ok",
            "batches_s": ((0.01, 0.03, 0.02),),
            "devices": "cpu:4",
            "peak_bytes": 2**20,
            "collectives": (sent,) * 3,
            "plan": plan.to_json(),
            "certificate": Certificate({"loss": 3e-7}, None, 1e-4, (), ()),
            "predicted": Predicted(
                "tpu-v5e", cost.time_s, cost.overlapped_s, cost.peak_bytes, {"all_reduce": 7}
            ),
        }
    )
    return tl.Comparison("m", "d", (row,), None, "normal", 0, "in turns")


def test_compare_takes_what_was_measured(problem: tl.Problem) -> None:
    plan = tl.Plan.from_actions(problem, ["batch->data"])
    measured = comparison(problem, plan)
    bare, full = tl.views.compare(measured), tl.views.compare(measured, problem)
    for view in (bare, full):
        assert view.table["measured_s"][0] == pytest.approx(0.02)
        assert view.table["max_relative_error"][0] == 3e-7
        text = "".join(Tags(view.to_html()).text)
        assert "3 AR" in text
        assert "20 ms" in text
    assert bare.table["time_s"][0] == full.table["time_s"][0] == tl.price(problem, plan).time_s
    assert Tags(full.to_html()).count("svg") == 1
    assert not Tags(bare.to_html()).count("svg")
    with pytest.raises(InvalidInput, match="give the problem as well"):
        tl.views.memory(measured)
    assert (
        tl.views.memory(measured, problem).table["peak_bytes"][0]
        == tl.price(problem, plan).peak_bytes
    )


def test_tiles(problem: tl.Problem) -> None:
    plan = tl.Plan.from_actions(problem, ["hidden->model"])
    path = "params['layers'][0]['w_up']"
    view = tl.views.tiles(plan, path)
    assert plan.argument_specs()[path] == ((), ("model",))
    assert view.table["dim 1"].tolist() == ["0:64", "64:128"] * 2
    assert view.table["dim 0"].tolist() == ["0:64"] * 4
    assert Tags(view.to_html()).count("svg") == 1
    number = problem.analysis.program.value_name.index(path)
    assert tl.views.tiles(plan, number).table.equals(view.table)
    result_path = problem.analysis.program.output_paths[0]
    assert tl.views.tiles(plan, result_path) is not None
    cell = view._make()
    assert cell.table.value["dim 1"].tolist() == ["0:64", "64:128"] * 2
    cell.tensor.value = problem.analysis.program.value_name.index("params['layers'][0]['w_down']")
    assert cell.table.value["dim 0"].tolist() == ["0:64", "64:128"] * 2


# -- wrong input -----------------------------------------------------------------------------------
def test_wrong_input_is_refused_with_what_is_taken(
    result: tl.SearchResult, problem: tl.Problem
) -> None:
    model = tl.load("attention")
    for name in ("graph", "listing", "conflicts", "colours"):
        with pytest.raises(
            InvalidInput,
            match=rf"views.{name} takes an Analysis or a Problem, not a Model. .*tl.analyse",
        ):
            getattr(tl.views, name)(model)
    with pytest.raises(
        InvalidInput, match=r"no level is called 'nams' \(did you mean \"names\"\?\)"
    ):
        tl.views.graph(problem, level="nams")
    with pytest.raises(
        InvalidInput,
        match=r"takes a SearchResult of tl.search or a RunningSearch .*, not a Problem",
    ):
        tl.views.search(problem)
    with pytest.raises(InvalidInput, match="takes a Problem as second argument, not a Plan"):
        tl.views.tree(result, result.plan)
    with pytest.raises(InvalidInput, match="takes a Race"):
        tl.views.race(result)
    with pytest.raises(InvalidInput, match="'a' is an int, 'b' is a str"):
        tl.views.compare({"a": 1, "b": "x", "c": result.plan}, problem)
    with pytest.raises(InvalidInput, match="the price of plan needs the problem"):
        tl.views.memory(result.plan)
    with pytest.raises(InvalidInput, match="not a dict"):
        tl.views.compare({})
    with pytest.raises(InvalidInput, match="no tensor is called 'paramz'"):
        tl.views.tiles(result.plan, "paramz")
    with pytest.raises(InvalidInput, match="from 0 to"):
        tl.views.tiles(result.plan, 10**6)
    with pytest.raises(InvalidInput, match="a ShardingPlan or a SearchResult, not an Analysis"):
        tl.views.tiles(problem.analysis)


def test_a_view_that_is_called_in_another_way_says_how(attention: tl.Analysis) -> None:
    problem = tl.Problem(attention, {"data": 4})
    for call in (
        lambda: tl.views.listing(problem, tl.replicated(problem)),
        lambda: tl.views.graph(),
        lambda: tl.views.tree(problem=problem, plan=None),
    ):
        with pytest.raises(InvalidInput, match=r"^views\.\w+ takes \(\w+.*inline\): .*It shows: "):
            call()


# -- frames ----------------------------------------------------------------------------------------
def get(url: str, **headers: str) -> tuple[int, str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, "", error.headers


def test_one_server_serves_all_views_to_our_own_pages_only(attention: tl.Analysis) -> None:
    first, second = tl.views.graph(attention), tl.views.listing(attention)
    assert first.url != second.url
    assert first.url.partition("?")[0] == second.url.partition("?")[0]
    assert first.url.startswith("http://127.0.0.1:")
    status, text, _ = get(first.url)
    assert status == 200
    assert not re.findall(r"""(?:src|href)=["']https?://(?!127\.0\.0\.1)""", text)
    alive = first.url.replace("/?", "/alive?")
    status, _, headers = get(alive)
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert get(alive, Host="evil.example")[0] == 403
    assert get(first.url, Host="evil.example")[0] == 403
    first.close()
    assert get(alive)[0] == 404
    assert get(second.url.replace("/?", "/alive?"))[0] == 204


IMPORTED_BY_FRAMES = """
import importlib.abc, sys, threading, urllib.request
import toast_lab as tl
from toast_lab.app import frames

class Recorder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if threading.current_thread().name == "toast-lab frames":
            names.append(name)

names = []
problem = tl.Problem(tl.analyse(tl.load("attention")), {"data": 4})
result = tl.search(problem, budget=tl.Budget(None, 100))
views = [
    tl.views.colours(problem),
    tl.views.graph(problem.analysis),
    tl.views.compare({"searched": result.plan}, problem),
    tl.views.memory({"searched": result.plan}, problem),
    tl.views.tiles(result.plan),
    tl.views.search(result),
    tl.views.tree(result, problem),
]
views[0].url  # the server is ready now, and cells may import what they like
sys.meta_path.insert(0, Recorder())
for view in views:
    urllib.request.urlopen(view.url).read()
print(*sorted({
    name for name in names
    if name in sys.modules
    and name.partition(".")[0] not in {*sys.stdlib_module_names, "toast_lab"}
}))
"""


def test_frames_import_no_library_beside_the_cells() -> None:
    child = [sys.executable, "-W", "ignore", "-c", IMPORTED_BY_FRAMES]
    run = subprocess.run(child, capture_output=True, text=True, timeout=180)
    assert (run.returncode, run.stdout.strip()) == (0, ""), run.stderr[-2000:]


def test_an_output_holds_the_static_picture_and_asks_before_it_shows_a_frame(
    attention: tl.Analysis,
) -> None:
    view = tl.views.graph(attention)
    output = view._repr_html_()
    assert view.to_html() in output
    assert output.index("<svg") < output.index("<script>")
    assert "<iframe" not in output
    assert "fetch(alive)" in output
    assert view.url.replace("/?", "/alive?") in output
    quoted = frames.html("http://127.0.0.1:1/?frame=k", 10, "it's </script>", frames.Safe("static"))
    assert quoted.count("</script>") == 1


def test_a_view_is_saved_as_a_page(attention: tl.Analysis, tmp_path: Any) -> None:
    tl.views.graph(attention).save(tmp_path / "graph.html")
    text = (tmp_path / "graph.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "<svg" in text
    assert "127.0.0.1" not in text


def test_inline_gives_a_panel_object(attention: tl.Analysis) -> None:
    inline = tl.views.listing(attention, inline=True)
    assert isinstance(inline, pn.viewable.Viewable)
    assert inline.styles["height"].endswith("px")


def test_explore_in_a_notebook_is_a_frame_of_the_same_server(
    attention: tl.Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toast_lab.app.explore.in_notebook", lambda: True)
    cell = explore("attention")
    view = tl.views.graph(attention)
    assert cell.url.partition("?")[0] == view.url.partition("?")[0]
    assert "attention: 10 ops" in cell._repr_html_()
    assert get(cell.url)[0] == 200
    cell.stop()
    assert get(cell.url.replace("/?", "/alive?"))[0] == 404


def test_explore_begins_with_the_mesh_and_machine_that_it_was_given() -> None:
    own = dataclasses.replace(machine("tpu-v5e"), memory_bytes=2**30)
    loaded = explore("mlp", mesh={"d": 8}, machine=own, inline=True).session.loaded
    assert str(loaded.problem.mesh) == loaded.mesh == "d=8"
    assert loaded.problem.memory_limit_bytes == 2**30
    loaded = explore("mlp", mesh="2x2", machine="tpu-v3", inline=True).session.loaded
    assert (str(loaded.problem.mesh), loaded.machine) == ("data=2,model=2", "tpu-v3")
    with pytest.raises(InvalidProblem, match="no machine is called"):
        explore("mlp", machine="tpu-v55")
    with pytest.raises(InvalidProblem, match="bad mesh"):
        explore("mlp", mesh={"d": 0})


# -- names -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "code",
    [
        "import toast_lab as tl; import sys; assert 'panel' not in sys.modules; tl.views.tiles; "
        "print('ok')",
        "import toast_lab.views.tiles as t, toast_lab as tl; assert t.parts and "
        "callable(tl.views.tiles); print('ok')",
        "import toast_lab as tl, sys; tl.views; assert not {'panel', 'bokeh'} & set(sys.modules);"
        "assert {'graph', 'tree'} <= set(dir(tl.views)); print('ok')",
    ],
)
def test_views_are_there_on_first_use(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr


def test_an_unknown_view_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'grph'"):
        tl.views.grph  # noqa: B018
