"""The public names resolve, whatever has been imported before."""

import subprocess
import sys

import pytest

import toast_lab as tl

DESIGNED = [
    "from_jax",
    "from_stablehlo",
    "from_torch",
    "load",
    "analyse",
    "Problem",
    "search",
    "Budget",
    "price",
    "Plan",
    "listing",
    "run",
    "explore",
    "compare",
    "annotations",
]


@pytest.mark.parametrize("name", DESIGNED)
def test_public_names_are_callable(name):
    assert callable(getattr(tl, name))
    assert name in dir(tl)


@pytest.mark.parametrize(
    "code",
    [
        "import toast_lab as tl; tl.search",
        "import toast_lab as tl; import toast_lab.search.mcts.mcts; toast_lab.search.mcts.mcts.run",
        "import toast_lab.search.contract as c; import toast_lab as tl; c.Budget",
        "import toast_lab as tl; tl.search; import toast_lab.search.mcts.mcts as m; m.run",
    ],
)
def test_search_is_both_a_stage_and_a_function(code):
    use = (
        "\nfrom tests.helpers import analysed"
        "\nr = tl.search(tl.Problem(analysed('xxt'), '2'), budget=tl.Budget(evaluations=20))"
        "\nassert type(r).__name__ == 'Result'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + use], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_unknown_names_are_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        tl.serach  # noqa: B018
