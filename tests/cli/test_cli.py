"""The commands as people and programs use them.

Tables are for people and JSON is for programs; a mistake gives one clear message.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.small_net import NET
from toast_lab import isolate
from toast_lab.commands import common, output
from toast_lab.search.methods import METHODS
from toast_lab.search.saved_search import SavedSearch
from toast_lab.text import bytes_text

ROOT = Path(__file__).parents[2]
# A shell's background jobs ignore Ctrl-C, and so do their children: the tests must not depend on
# how they were started.
START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from "
    "toast_lab.cli import main; "
)
TOAST = [sys.executable, "-c", START + "sys.exit(main())"]
QUICK = ["--evaluations", "30"]
COMMANDS = {
    "analyse": ["analyse", *NET],
    "search": ["search", *NET, *QUICK],
    "race": ["race", *NET, *QUICK, "--methods", "mcts,exhaustive"],
    "price": ["price", *NET, "--actions", "S@1->data"],
    "list": ["list", *NET, "--actions", "S@1->data"],
    "run": ["run", *NET, "--actions", "S@1->data", "--repeats", "2"],
    "compile": [
        "compile",
        *NET,
        "--actions",
        "S@1->data",
        "--topology",
        "cpu:4",
        "--store",
        "none",
    ],
    "models": ["models"],
    "machines": ["machines"],
    "conflicts": ["conflicts", *NET],
    "why": ["why", NET[0], "all_gather", *NET[1:], "--actions", "S@1->data"],
}


def started(*argv: str, **options: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    return subprocess.Popen([*TOAST, *argv], stdout=subprocess.PIPE, text=True, env=env, **options)


@pytest.fixture
def answer(toast: Any) -> Any:
    """The output of one of ``COMMANDS``, run once for all tests, since none changes anything."""

    def run(name: str, *more: str) -> tuple[int, str, str]:
        if (name, *more) not in ANSWERS:
            ANSWERS[name, *more] = toast(*COMMANDS[name], *more)
        return ANSWERS[name, *more]

    return run


ANSWERS: dict[tuple[str, ...], tuple[int, str, str]] = {}


# -- every command ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_for_people(answer: Any, name: str) -> None:
    status, out, err = answer(name)
    assert status == 0, err
    assert out.strip()
    assert err == "", "progress is for terminals only"
    assert "Traceback" not in out
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(out)


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_all_there_is(answer: Any, name: str) -> None:
    status, out, err = answer(name, "--json")
    assert status == 0, err
    data = json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert isinstance(data, dict)
    assert err == ""


@pytest.mark.parametrize("name", ["search", "price", "list", "run", "compile"])
def test_json_tells_model_problem_plan_and_cost(answer: Any, name: str) -> None:
    data = json.loads(answer(name, "--json")[1])
    assert data["model"]["name"] == "attention"
    assert data["problem"]["mesh"] == {"data": 2, "model": 2}
    assert data["cost"]["peak_bytes"] > 0
    assert data["cost"]["fits"] is True
    assert set(data["plan"]["arguments"]) == {"x", "wq", "wk", "wv"}


def test_help_names_every_command(toast: Any) -> None:
    status, out, _ = toast("--help")
    assert status == 0
    for name in (*COMMANDS, "serve", "sweep"):
        assert re.search(rf"^    {name}\s", out, re.MULTILINE), name
    for name in (*COMMANDS, "serve"):
        assert toast(name, "--help")[0] == 0


# -- explain ---------------------------------------------------------------------------------------


def test_why_names_the_action_and_the_conflict(toast: Any, answer: Any) -> None:
    _, out, _ = answer("why")
    assert re.search(r"^all_gather \{data\} of k", out, re.MULTILINE)
    assert re.search(r"^  from +S@1->data$", out, re.MULTILINE)
    status, _, err = toast("why", NET[0], "all_gathr", *NET[1:], "--actions", "S@1->data")
    assert status == 2
    assert 'did you mean "all_gather"?' in err
    data = json.loads(toast("why", NET[0], "0", *NET[1:], "--actions", "S@1->data", "--json")[1])
    assert data["reasons"][0]["undoing"][0]["text"] == "without S@1->data"


def test_why_alone_lists_what_may_be_asked_about(toast: Any) -> None:
    words = ["why", *NET, "--actions", "S@1->data"]
    status, out, err = toast(*words)
    assert (status, err) == (0, "")
    assert re.search(r"^all_gather +data +1 ", out, re.MULTILINE)
    assert f"toast-lab why {NET[0]} " in out
    assert "reasons" not in json.loads(toast(*words, "--json")[1])
    assert "no collectives" in toast("why", *NET, "--actions")[1]


def test_choices_ranks_what_each_saves(toast: Any) -> None:
    status, out, err = toast("choices", *NET, "--actions", "S@1->data")
    assert (status, err) == (0, "")
    assert re.search(r"^S@1->data +-[\d.]+ us +=? +-[\d.]+%$", out, re.MULTILINE)
    words = ["choices", *NET, "--actions", "S@1->data", "--json"]
    assert json.loads(toast(*words)[1])["choices"][-1]["text"] == "S@1->data"
    # It costs more than no sharding, and is written all the same
    assert json.loads(toast(*words, "--written")[1])["choices"]
    assert "nothing is written" in toast("choices", *NET, "--written", "--actions")[2]
    sizes = ["--set", "batch=2048", "hidden=16384", "--mesh", "d=4", "--actions", "B->d"]
    rows = json.loads(toast("choices", "mlp", *sizes, "--written", "--json")[1])["choices"]
    assert rows
    assert {row["kind"] for row in rows} <= {"rule", "constraint"}
    assert "no actions to leave out" in toast("choices", *NET, "--actions")[2]


def test_search_says_when_sizes_are_too_small_to_cut(toast: Any) -> None:
    _, _, err = toast("search", "xxt", "--evaluations", "20")
    sizes = err.partition("--set ")[2].split()
    assert sizes == ["rows=8192", "columns=512"]
    assert "--set" not in toast("search", "xxt", "--evaluations", "20", "--set", *sizes)[2]


def test_diff_of_two_saved_plans(toast: Any, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{i}.json") for i in range(2)]
    for bit, path in enumerate(paths):
        assert toast("price", *NET, "--actions", f"S@{bit}->data", "--save", path)[0] == 0
    status, out, err = toast("diff", NET[0], *paths)
    assert (status, err) == (0, "")
    assert re.search(r"^all_reduce \{data\} .* 1 -> 0 ", out, re.MULTILINE)
    data = json.loads(toast("diff", NET[0], *paths, "--json")[1])
    assert data["problem"]["mesh"] == {"data": 2, "model": 2}
    assert data["tensors"]
    status, _, err = toast("diff", NET[0], paths[0], str(tmp_path / "none.json"))
    assert status == 2
    assert "none.json" in err


# -- compile ---------------------------------------------------------------------------------------


def test_compile_shows_priced_beside_compiled(answer: Any) -> None:
    status, out, err = answer("compile")
    assert status == 0, err
    assert re.search(r"^Mesh data=2,model=2 on cpu:4 \(cpu\), priced on cpu", out, re.MULTILINE)
    assert re.search(r"^all_gather +512 B +512 B", out, re.MULTILINE)
    assert "Different" in out
    data = json.loads(answer("compile", "--json")[1])
    assert data["compiled"]["fits"] is True
    # XLA cuts the sum over data along the idle axis model first, and exchanges extra data for
    # that.
    changed = [
        (row["predicted_kind"], row["compiled_kind"])
        for row in data["diff"]
        if row["status"] == "changed"
    ]
    assert ("reduce_scatter", "all_reduce") in changed
    assert all(row["reason"] for row in data["diff"] if row["status"] != "equal")


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ("tpu:v5e:4x4", "4 devices, fewer than the 16"),
        ("tpu:v9", "no topology is called 'tpu:v9'"),
        ("cpu:2", "more"),
    ],
)
def test_compile_refuses_topologies_with_their_numbers(
    toast: Any, topology: str, words: str
) -> None:
    status, out, err = toast("compile", *NET, "--topology", topology)
    assert (status, out) == (2, "")
    assert words in err


# -- analyse ---------------------------------------------------------------------------------------


def test_analyse_shows_colours_conflicts_and_source_lines(toast: Any) -> None:
    _, out, _ = toast("analyse", "attention")
    assert "5 conflicts, 1 compatibility sets, 2 resolutions" in out
    assert re.search(r"^S +64 +15 +1 +x +2 +yes", out, re.MULTILINE)
    assert re.search(r"^S#5 +S#6 +definition of a +attention.py:\d+", out, re.MULTILINE)
    assert re.search(r"^S#13 +S#14 +use of d in z +attention.py:\d+", out, re.MULTILINE)
    assert "Coverage: every op can be split and every value can be kept sharded." in out


def test_analyse_json(toast: Any) -> None:
    data = json.loads(toast("analyse", "attention", "--json")[1])
    assert data["resolutions"] == 2
    assert data["conflicts"][0]["sides"] == ["S#5", "S#6"]
    assert len(data["conflicts"]) == 5
    assert {c["set"] for c in data["conflicts"]} == {0}
    (sequence,) = [g for g in data["groups"] if g["name"] == "S"]
    assert sequence == {
        "name": "S",
        "size": 64,
        "shardable": True,
        "names": 15,
        "colours": ["S"],
        "arguments": ["x"],
        "resolutions": [0],
    }


def test_analyse_shows_repeated_layers_once(toast: Any) -> None:
    sizes = [
        "layers=3",
        "d_model=16",
        "hidden=32",
        "heads=2",
        "key_size=8",
        "vocab=64",
        "batch=2",
        "sequence=8",
    ]
    _, out, _ = toast("analyse", "transformer", "--set", *sizes, "mode=forward")
    assert out.count("Compatibility set") == 1
    assert "(2 more sets are isomorphic and share it)" in out
    _, out, _ = toast("analyse", "transformer", "--set", *sizes, "mode=forward", "--all")
    assert out.count("Compatibility set") == 3


def test_analyse_tells_which_dims_do_not_divide(toast: Any) -> None:
    argv = [
        "analyse",
        "mlp",
        "--set",
        "batch=10",
        "inputs=9",
        "--mesh",
        "3x5",
        "--set",
        "hidden=15",
        "outputs=7",
    ]
    (dim,) = json.loads(toast(*argv, "--json")[1])["divisibility"]["dims"]
    assert (dim["colour"], dim["size"], dim["arguments"]) == ("W", 7, ["w2"])
    assert dim["misses"][0] == {"axis": "data", "axis_size": 3, "common": 1, "padded": 9}
    _, out, _ = toast(*argv)
    assert (
        "Divisibility: no axis of data=3,model=5 divides 1 of the sizes; every argument can be cut."
    ) in out
    assert re.search(r"^W +7 +2 .* w2 +data=3: pad to 9; model=5: pad to 10", out, re.MULTILINE)
    assert "Sizes that only some axes" in out
    assert json.loads(toast("analyse", "mlp", "--json")[1])["divisibility"] is None, (
        "it takes a mesh"
    )


def test_analyse_reports_ops_without_a_rule(toast: Any, tmp_path: Path) -> None:
    path = tmp_path / "loop.mlir"
    path.write_text(
        "module {\n  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {\n"
        "    %0 = stablehlo.custom_call @secret(%x) : (tensor<8xf32>) -> tensor<8xf32>\n"
        "    return %0 : tensor<8xf32>\n  }\n}\n"
    )
    _, out, _ = toast("analyse", str(path))
    assert "Coverage: 1 of 1 ops cannot be split; they need 100.0% of the bytes whole" in out
    assert re.search(r"custom_call +1 +- +100.0% +all .*no sharding", out)
    row = json.loads(toast("analyse", str(path), "--json")[1])["coverage"]["rows"][0]
    assert (row["reason"], row["count"], row["bytes"], row["flops_share"]) == (
        "no_rule",
        1,
        64.0,
        None,
    )


def test_where_actions_stop_is_shown_when_asked_for(toast: Any) -> None:
    sizes = [
        "layers=1",
        "d_model=16",
        "hidden=32",
        "heads=2",
        "key_size=8",
        "vocab=64",
        "batch=2",
        "sequence=8",
    ]
    argv = ["analyse", "transformer", "--set", *sizes, "mode=forward"]
    _, out, _ = toast(*argv)
    assert "2 kinds of ops can be split along some of their dims only (--all shows them)" in out
    _, out, _ = toast(*argv, "--all")
    assert re.search(r"^concatenate +2 +0 .* key ", out, re.MULTILINE)


def test_price_and_search_tell_which_arguments_stay_whole(toast: Any) -> None:
    _, out, _ = toast("price", *NET, "--actions", "S@1->data")
    assert "Large arguments that stay whole" in out
    assert re.search(r"^wq +f32\[8, 8\] +256 B +\d\d\.\d% ", out, re.MULTILINE)
    for command in (
        ["price", *NET, "--actions", "S@1->data"],
        ["list", *NET, "--actions", "S@1->data"],
    ):
        report = json.loads(toast(*command, "--json")[1])["divisibility"]
        assert report["planned"] is True
        assert {row["argument"] for row in report["whole_arguments"]} == {"wq", "wk", "wv"}
    report = json.loads(toast("search", *NET, *QUICK, "--json")[1])["divisibility"]
    assert report["mesh"] == {"data": 2, "model": 2}


def test_analyse_listings(toast: Any) -> None:
    _, out, _ = toast("analyse", "mlp", "--listing")
    assert "y : [B, U] = matmul(x, w1)" in out
    _, out, _ = toast("analyse", "mlp", "--names")
    assert "matmul(x : [B#1, X#" in out
    data = json.loads(toast("analyse", "mlp", "--listing", "--names", "--json")[1])
    assert data["listing"].startswith("def mlp(")
    assert data["names_listing"].startswith("def mlp(")


# -- sizes and models ------------------------------------------------------------------------------


def test_sizes_are_typed_by_their_defaults() -> None:
    defaults = {"n": 2, "rate": 0.5, "mode": "train", "flag": True}
    sizes = common.read_sizes(["n=3", "rate=1", "mode=7", "flag=no"], defaults)
    assert sizes == {"n": 3, "rate": 1.0, "mode": "7", "flag": False}
    assert [type(v) for v in sizes.values()] == [int, float, str, bool]
    # without the defaults of a module's make, the type of a value is read from its text
    assert common.read_sizes(["n=3", "rate=1e-3", "mode=train", "on=True"], {}) == {
        "n": 3,
        "rate": 1e-3,
        "mode": "train",
        "on": True,
    }


def test_a_module_and_a_file_are_models_too(
    toast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cli_user_model.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def make(width=4):\n"
        "    return lambda x: jnp.tanh(x), (jax.ShapeDtypeStruct((8, width), 'float32'),)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data = json.loads(toast("analyse", "cli_user_model:make", "--set", "width=6", "--json")[1])
    assert [g["size"] for g in data["groups"]] == [8, 6]
    (tmp_path / "cli_print_model.py").write_text(
        "import jax\n"
        "def fn(x):\n"
        "    jax.debug.print('{}', x)\n"
        "    return x + 1\n"
        "def make():\n"
        "    return fn, (jax.ShapeDtypeStruct((8,), 'float32'),)\n"
    )
    assert (
        "note: dropped debug_print (cli_print_model.py:3): it only prints"
        in toast("analyse", "cli_print_model:make")[2]
    )
    path = tmp_path / "net.mlir"
    path.write_text(
        "func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {\n return %x : "
        "tensor<8x4xf32>\n}\n"
    )
    assert json.loads(toast("analyse", str(path), "--json")[1])["model"]["name"] == "net"
    status, _, err = toast("analyse", str(path), "--set", "layers=2")
    assert status == 2
    assert "is a file; its sizes are fixed" in err


def test_models_knows_the_sizes_without_importing_them(toast: Any) -> None:
    from toast_lab.models import registry

    data = json.loads(toast("models", "--json")[1])
    # JSON has no tuples
    known = json.loads(json.dumps({name: registry.sizes(name) for name in registry.MODELS}))
    assert {m["name"]: m["sizes"] for m in data["models"]} == known


def test_models_shows_parameters_beside_the_papers_and_expert_plans(toast: Any) -> None:
    from toast_lab.models import registry

    data = {m["name"]: m for m in json.loads(toast("models", "--json")[1])["models"]}
    assert data["mlp"]["parameter_count"] is None
    assert data["mlp"]["expert_plans"] == []
    out = toast("models")[1]
    for name, facts in registry.FACTS.items():
        row = data[name]
        assert (row["parameter_count"], row["paper_parameters"]) == (
            facts.parameter_count,
            facts.paper_parameters,
        )
        assert row["expert_plans"] == list(facts.expert_plans)
        assert re.search(
            rf"^{name} +{facts.parameter_count:,} +{facts.paper_parameters}", out, re.MULTILINE
        )


# -- plans -----------------------------------------------------------------------------------------


def test_a_saved_plan_is_the_same_plan(toast: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    searched = json.loads(toast("search", *NET, *QUICK, "--save", path, "--json")[1])
    for command in ("price", "list"):
        net = NET[:-2]  # the mesh comes from the plan
        data = json.loads(toast(command, *net, "--plan", path, "--json")[1])
        assert data["plan"] == searched["plan"]
        assert data["problem"]["mesh"] == {"data": 2, "model": 2}
        assert data["cost"]["time_s"] == searched["cost"]["time_s"]


def test_no_actions_is_the_unsharded_program(toast: Any) -> None:
    data = json.loads(toast("price", *NET, "--json", "--actions")[1])
    assert data["plan"]["actions"] == []
    assert data["cost"]["relative_time"] == 1.0
    assert data["cost"]["time_s"] == data["problem"]["unsharded_time_s"]


def test_price_counts_the_collectives_of_sequence_sharding(toast: Any) -> None:
    data = json.loads(toast("price", *NET, "--actions", "S@1->data", "--json")[1])
    assert [(c["kind"], c["axes"], c["value"]) for c in data["cost"]["collectives"]] == [
        ("all_gather", ["data"], "k"),
        ("reduce_scatter", ["data"], "z"),
    ]
    _, out, _ = toast("price", *NET, "--actions", "S@1->data")
    assert re.search(r"^all_gather +data +1 ", out, re.MULTILINE)


def test_price_shows_which_rules_act_on_an_op(toast: Any) -> None:
    words = ["price", *NET, "--actions", "S@1->data", "--rules"]
    status, out, _ = toast(*words, "dot_general")
    assert status == 0
    assert "Small values that are needed soon stay in vector memory." in out
    rows = json.loads(toast(*words, "dot_general", "--json")[1])["rules"]
    assert {row["kind"] for row in rows} == {"dot_general"}
    names = [effect["name"] for effect in rows[0]["effects"]]
    assert "vector_memory" in names
    status, _, err = toast(*words, "dot_generl")
    assert status == 2
    assert 'did you mean "dot_general' in err


def test_list_prints_the_listing_alone(answer: Any) -> None:
    _, out, _ = answer("list")
    assert out.startswith("def attn(x : [16{data}, 8]")
    assert "all_gather {data}" in out
    assert out.rstrip().endswith("}")


def test_a_search_is_kept_and_resumed(toast: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "search.json")
    words = ["search", *NET, "--save-search", path, "--json"]
    first = json.loads(toast(*words, "--evaluations", "5", "--seed", "3")[1])
    status, out, err = toast(*words, "--evaluations", "6", "--resume", path)
    assert status == 0, err
    resumed = json.loads(out)["search"]
    assert resumed["seed"] == 3
    assert first["search"]["evaluations"] + 6 <= resumed["evaluations"]
    simulations = SavedSearch.load(path).facts["simulations"]
    assert simulations == resumed["simulations"] > first["search"]["simulations"]
    assert toast("price", *NET, "--plan", path)[0] == 0, "the file is one of a plan, too"
    status, _, err = toast("search", *NET, "--resume", path, "--seed", "4")
    assert status == 2
    assert "it has seed 3, not 4" in err


def test_a_search_of_no_time_gives_the_program_as_it_is(toast: Any) -> None:
    data = json.loads(toast("search", *NET, "--seconds", "0", "--json")[1])
    assert data["search"]["status"] == "BUDGET"
    assert data["plan"]["actions"] == []
    assert data["cost"]["time_s"] == data["problem"]["unsharded_time_s"]


def test_options_reach_the_method(toast: Any, tmp_path: Path) -> None:
    path, n_simulations = str(tmp_path / "search.json"), []
    for more in ([], ["--option", "depth=1", "refine=0"]):
        words = ["search", *NET, "--evaluations", "100", *more, "--save-search", path]
        assert toast(*words)[0] == 0
        n_simulations.append(SavedSearch.load(path).facts["simulations"])
    assert SavedSearch.load(path).facts["options"] == {"depth": 1, "refine": 0}
    assert n_simulations[0] != n_simulations[1]


def test_a_proof_is_printed(toast: Any) -> None:
    words = ["search", *NET, "--method", "exhaustive", "--option", "min_names=1"]
    search = json.loads(toast(*words, "--json")[1])["search"]
    assert (search["status"], search["gap"]) == ("COMPLETE", 0)
    assert search["bound"] > 0
    assert "Proven: no plan that this method can make scores lower." in " ".join(
        toast(*words)[1].split()
    )


def test_the_help_of_a_search_tells_of_every_method(toast: Any) -> None:
    words = " ".join(toast("search", "--help")[1].split())
    for name, method in METHODS.items():
        assert f"{name}: {method.sentence()}" in words
        for option in method.options().values():
            assert str(option) in words


def test_list_without_a_plan_searches(toast: Any) -> None:
    data = json.loads(toast("list", *NET, *QUICK, "--json")[1])
    assert data["search"]["method"] == "mcts"
    assert data["listing"].startswith("def attn(")


@pytest.mark.parametrize(("size", "nbytes"), [("1e-6", 2**30 * 1e-6), ("1 KiB", 1024.0)])
def test_a_memory_limit_in_gib_or_with_its_unit(toast: Any, size: str, nbytes: float) -> None:
    data = json.loads(toast("price", *NET, "--actions", "--memory-limit", size, "--json")[1])
    assert data["problem"]["memory_limit_bytes"] == pytest.approx(nbytes)
    assert data["cost"]["fits"] is False
    assert data["cost"]["memory_penalty"] > 0


def test_run_agrees_with_the_unsharded_program(answer: Any) -> None:
    data = json.loads(answer("run", "--json")[1])
    assert data["run"]["max_relative_error"] < 1e-5
    assert data["run"]["n_devices"] == 4
    assert len(data["run"]["step_times_s"]) == 2
    _, out, _ = answer("run")
    assert re.search(r"^all_gather +1 +1 *$", out, re.MULTILINE), "as many compiled as priced"


def test_serve_passes_its_arguments_on(toast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    seen: dict[str, Any] = {}
    module = types.ModuleType("toast_lab.app.app_server")
    module.serve = lambda **options: seen.update(options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toast_lab.app.app_server", module)
    assert toast("serve", "mlp", "--port", "5007", "--show", "--allow-origin", "lab:80")[0] == 0
    assert seen == {
        "port": 5007,
        "address": "127.0.0.1",
        "model": "mlp",
        "show": True,
        "origins": ("lab:80",),
    }


# -- wrong input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["analyse", "atention"],
            ["'atention'", 'did you mean "attention"', "package.module:make"],
        ),
        (["analyse", "gone.mlir"], ["cannot read gone.mlir", "No such file"]),
        (["analyse", "surely_gone:make"], ["cannot import surely_gone", "on the path"]),
        (
            ["analyse", "mlp", "--set", "bach=2", "7"],
            ["'bach'", 'did you mean "batch"', "expected size=value, got '7'"],
        ),
        (["analyse", "mlp", "--set", "hidden=x"], ["hidden=x: 'x' is not a whole number"]),
        (["analyse", "mlp", "--mesh", "4by2"], ["cannot read the mesh '4by2'", 'write "4x2"']),
        (["price", "mlp"], ["--actions", "--plan FILE"]),
        (["price", "mlp", "--actions", "Bo->data"], ["no colour is called 'Bo'", "colours: B"]),
        (["price", "mlp", "--actions", "B->date"], ["'date'", 'did you mean "data"']),
        (
            ["price", "mlp", "--actions", "B"],
            ["cannot read the action 'B'", 'write "colour->axis"'],
        ),
        (
            ["price", "mlp", "--mesh", "data=7", "--actions", "B->data"],
            ["256", "not divisible", "Choose another axis"],
        ),
        (["price", "mlp", "--plan", "gone.json"], ["cannot read gone.json"]),
        (["search", "mlp", "--machine", "tpuv5e"], ["'tpuv5e'", 'did you mean "tpu-v5e"']),
        (["search", "mlp", "--method", "mtcs"], ["'mtcs'", 'did you mean "mcts"']),
        (
            ["search", "mlp", "--save", "no/such/folder/plan.json"],
            ["--save", "folder does not exist"],
        ),
        (["search", "mlp", "--seconds", "-1"], ["--seconds", "must not be below 0, got -1"]),
        (
            ["search", "mlp", "--option", "depht=8"],
            ["'depht'", 'did you mean "depth"', "options of mcts: "],
        ),
        (
            ["search", "mlp", "--method", "exhaustive", "--threads", "2"],
            ["'threads'", "options of exhaustive: depth="],
        ),
        (
            ["search", "mlp", "--option", "depth=8", "patience=few"],
            ["patience=few", "a whole number"],
        ),
        (["search", "mlp", "--option", "depth"], ["expected option=value, got 'depth'"]),
        (
            ["search", "mlp", "--resume", "no_such.json"],
            ["no_such.json", "cannot read this saved search"],
        ),
        (
            ["search", "mlp", "--save-search", "no/such/folder/search.json"],
            ["--save-search", "folder does not exist"],
        ),
        (["search", "mlp", "--evaluations", "many"], ["--evaluations", "many"]),
        (["search"], ["MODEL"]),
        (["serch", "mlp"], ["serch", "search"]),
        ([], ["COMMAND"]),
    ],
)
def test_bad_input_is_named_and_exits_with_2(toast: Any, argv: list[str], said: list[str]) -> None:
    status, out, err = toast(*argv)
    assert status == 2
    assert out == ""
    assert "Traceback" not in err
    for part in said:
        assert part in err


def test_a_damaged_plan(toast: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for text in ("{", "[]", '{"mesh": 3}', '{"mesh": {"data": 2}}'):
        path.write_text(text)
        status, _, err = toast("price", "mlp", "--plan", str(path))
        assert status == 2, text
        assert "plan.json" in err
        assert "Traceback" not in err


def test_a_plan_of_another_program(toast: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    assert toast("price", "mlp", "--actions", "B->data", "--save", path)[0] == 0
    status, _, err = toast("price", "attention", "--plan", path)
    assert status == 2
    assert "beyond their kind it recognises only" in err


def test_failed_work_exits_with_1(
    toast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cli_crashing_model.py").write_text("import os\ndef make():\n    os.abort()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    status, out, err = toast("analyse", "cli_crashing_model:make")
    assert (status, out) == (1, "")
    assert "crashed (SIGABRT)" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            RuntimeError("oops"),
            1,
            "toast-lab: a bug in TOAST Lab, not in your input: RuntimeError: oops",
        ),
        (isolate.Cancelled("loading: cancelled"), 1, "toast-lab: loading: cancelled"),
        (KeyboardInterrupt(), 130, "toast-lab: interrupted"),
        (
            PermissionError(13, "Permission denied", "plan.json"),
            1,
            "toast-lab: plan.json: Permission denied",
        ),
    ],
)
def test_whatever_happens_there_is_one_line(
    toast: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, said: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(output, "emit", fail)
    assert toast("machines")[0] == status
    _, out, err = toast("machines")
    assert out == ""
    assert err.startswith(said)
    assert len(err.splitlines()) == 1
    assert "Traceback" in toast("machines", "--debug")[2]
    assert "Traceback" in toast("--debug", "machines")[2]


# -- as a process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [["--help"], ["models"], ["machines"], ["search", "--help"]])
def test_looking_around_imports_nothing_heavy(argv: list[str]) -> None:
    code = (
        "import sys\nfrom toast_lab import cli\ntry:\n    cli.main(sys.argv[1:])\nexcept "
        "SystemExit:\n    pass\n"
        "print(*sorted({'jax', 'jaxlib', 'numba', 'scipy', 'networkx'} & set(sys.modules)), "
        "file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True, env=env
    )
    assert done.stderr.split() == []


def status_and_error(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        status = process.wait(120)
    finally:
        process.kill()
    assert process.stderr is not None
    return status, process.stderr.read()


def test_a_broken_pipe_says_nothing() -> None:
    # More output than fits into a pipe, so that writing continues after the reader has left.
    process = started("analyse", "transformer", "--json", stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert status_and_error(process) == (141, "")


def test_a_broken_pipe_under_a_table() -> None:
    process = started("analyse", "transformer", "--all", stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert status_and_error(process) == (141, "")


def test_a_broken_pipe_at_the_last_flush() -> None:
    # The output is so short that all of it is written at the end
    process = started("models", stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert status_and_error(process) == (141, "")


def wait_for(fd: int, text: str, seconds: float = 120) -> str:
    """Read from a terminal until it shows ``text``."""
    seen, end = "", time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < end, f"{text!r} never came: {seen[-2000:]!r}"
        if select.select([fd], [], [], 0.2)[0]:
            try:
                seen += os.read(fd, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"{text!r} never came: {seen[-2000:]!r}") from None
    return seen


def test_a_narrow_terminal_cuts_no_number() -> None:
    mother, child = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "50"}
    try:
        process = subprocess.Popen([*TOAST, "machines"], stdout=child, env=env)
        os.close(child)
        assert re.search(r"a100 .* 74.5 GiB .* 2.039 TB/s", wait_for(mother, "Sources"))
        # An unread terminal buffers some thousand characters, and then the writer blocks
        while process.poll() is None:
            if select.select([mother], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):
                    os.read(mother, 65536)
    finally:
        os.close(mother)


def test_interrupting_a_search_keeps_the_best() -> None:
    # Stderr is a terminal, so a progress bar shows when the search is running
    mother, child = pty.openpty()
    try:
        argv = ["search", "transformer", "--seconds", "300", "--json", "--mesh", "4x2"]
        process = started(*argv, stderr=child)
        os.close(child)
        wait_for(mother, "best ")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        os.close(mother)
    assert process.returncode == 0
    data = json.loads(out)
    assert data["search"]["status"] == "CANCELLED"
    assert data["search"]["elapsed_s"] < 200
    assert data["cost"]["time_s"] <= data["problem"]["unsharded_time_s"]


def test_interrupting_anything_else_ends_it(tmp_path: Path) -> None:
    (tmp_path / "cli_slow_model.py").write_text(
        "import pathlib, time\ndef make():\n    "
        "pathlib.Path(__file__).with_name('begun').touch()\n    time.sleep(60)\n"
    )
    process = started("analyse", "cli_slow_model:make", stderr=subprocess.PIPE, cwd=tmp_path)
    end = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "toast-lab: interrupted\n"


# -- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (3.2e-8, "32 ns"), (1.34e-5, "13.4 us"), (0.00131, "1.31 ms"), (75.0, "75 s")],
)
def test_times(seconds: float, text: str) -> None:
    assert output.time_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (4096, "4 KiB"),
        (1.25 * 2**30, "1.25 GiB"),
        (1010 * 2**20, "1010 MiB"),
        (3 * 2**40, "3 TiB"),
    ],
)
def test_bytes(size: float, text: str) -> None:
    assert bytes_text(size) == text


def test_json_has_no_infinities() -> None:
    assert output.plain_data({"a": (float("inf"), float("nan"), 1.5), 2: [None, True]}) == {
        "a": [None, None, 1.5],
        "2": [None, True],
    }
