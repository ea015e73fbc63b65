"""The options ``--pin``, ``--forbid`` and ``--keep-annotations``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.small_net import NET

QUICK = ["--evaluations", "30"]
TEXT = """
module @m {
  sdy.mesh @mesh = <["data"=2, "expert"=2]>
  func.func public @main(
    %a: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
    %b: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"expert"}, {}]>}
  ) -> tensor<16x32xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<16x64xf32>, tensor<64x32xf32>) -> tensor<16x32xf32>
    return %0 : tensor<16x32xf32>
  }
}
"""


def found(toast: Any, *argv: str) -> dict[str, Any]:
    status, out, err = toast(*argv, "--json")
    assert status == 0, err
    return json.loads(out)


@pytest.mark.parametrize("method", ["mcts", "alpa"])
def test_search_keeps_to_what_is_pinned_and_forbidden(toast: Any, method: str) -> None:
    asked = ["--pin", "S@1->data", "wq=-,model", "--forbid", "S->model", "--method", method]
    data = found(toast, "search", *NET, *QUICK, *asked)
    assert data["problem"]["pins"] == ["pin S@1->data", "pin wq=(-, model)", "forbid S->model"]
    assert data["plan"]["actions"][0] == "S@1->data"
    assert data["plan"]["arguments"]["wq"] == [[], ["model"]]
    free = found(toast, "search", *NET, *QUICK)
    assert free["problem"]["pins"] == []
    assert free["plan"]["arguments"]["wq"] != [[], ["model"]]


def test_pins_are_shown(toast: Any) -> None:
    status, out, err = toast("search", *NET, *QUICK, "--pin", "S@1->data")
    assert status == 0, err
    assert out.startswith("Kept: pin S@1->data\nattn on data=2,model=2: ")


def test_race_hands_the_pins_to_its_processes(toast: Any) -> None:
    data = found(toast, "race", *NET, *QUICK, "--methods", "beam,random", "--pin", "wq=-,model")
    assert [row["status"] in ("CONVERGED", "BUDGET") for row in data["race"]["rows"]] == [
        True,
        True,
    ]
    assert data["plan"]["arguments"]["wq"] == [[], ["model"]]


def test_price_takes_the_pinned_actions_first_and_refuses_plans_that_break_pins(
    toast: Any, tmp_path: Path
) -> None:
    data = found(toast, "price", *NET, "--actions", "--pin", "S@1->data")
    assert data["plan"]["actions"] == ["S@1->data"]
    file = str(tmp_path / "plan.json")
    assert toast("price", *NET, "--actions", "S@0->data", "--save", file)[0] == 0
    status, _, err = toast(
        "price", NET[0], *NET[1:5], "--set", "value=8", "--plan", file, "--pin", "S@1->data"
    )
    assert status == 2
    assert "does not keep to pin S@1->data" in err


def test_wrong_pins_are_refused_all_at_once(toast: Any) -> None:
    status, out, err = toast(
        "search", *NET, *QUICK, "--pin", "T->data", "wq=model", "--forbid", "S->dta"
    )
    assert (status, out) == (2, "")
    assert "no colour is called 'T'" in err
    assert "1 entries for shape 8x8" in err
    assert "no mesh axis is called 'dta' (did you mean \"data\"?)" in err


def test_annotations_of_a_file_are_kept(toast: Any, tmp_path: Path) -> None:
    file = tmp_path / "m.mlir"
    file.write_text(TEXT)
    given = ["search", str(file), "--mesh", "data=2,model=2", *QUICK]
    status, _, err = toast(*given, "--keep-annotations")
    assert status == 2
    assert (
        "argument arg1: (expert, -) on data=2,expert=2: arg1: no mesh axis is called 'expert'"
        in err
    )
    status, out, err = toast(*given, "--keep-annotations", "possible", "--json")
    assert status == 0, err
    assert "note: left out: argument arg1" in err
    data = json.loads(out)
    assert data["problem"]["pins"] == ["pin arg0=(data, -)"]
    assert data["plan"]["arguments"]["arg0"] == [["data"], []]
