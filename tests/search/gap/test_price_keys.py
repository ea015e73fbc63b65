"""What a price reads tells apart what shares the price: bounds hold, whatever the types.

Programs, machines and plans are drawn anew on every day; a failure prints what was drawn.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from evaluation.certification.programs import zoo
from evaluation.corpus.programs import PROGRAMS
from evaluation.kept_models import kept
from tests import sampling
from tests.search.gap.mixed_programs import MIXED, mixed_model
from tests.search.gap.states import CLOSE, choice_of, random_states, relaxed_s
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Problem
from toast_lab.search.gap.relaxation import RelaxationBuilder
from toast_lab.search.gap.relaxed_terms import TERMS, relax
from toast_lab.search.terms.menus import make_menus, packed_layouts
from toast_lab.search.terms.op_prices import use_costs
from toast_lab.search.terms.priced_terms import PricedTerms

PLACES = (("2x4", "tpu-v5e"), ("4x2", "tpu-v3"), ("2x4", "h100"), ("8", "tpu-v5p"))
SEED = sampling.seed("price keys")
ZOO = {case.name: case.model for case in zoo()}
CORPUS = {f"corpus {name}": program.make for name, program in PROGRAMS.items()}
SLOW = {"unet_train"}  # minutes each


@functools.cache
def _analysis(name: str) -> Analysis:
    make = CORPUS.get(name) or ZOO.get(name) or functools.partial(mixed_model, name)
    try:
        return analyse(kept(f"price keys {name}", make))
    except ModuleNotFoundError as missing:  # programs of the corpus are of many packages
        pytest.skip(str(missing))


def _most_above(problem: Problem, count: int, seed: int) -> float:
    """The largest share by which a relaxed price is above the price of its plan."""
    relaxation, most = relax(problem), 0.0
    for plan in random_states(problem, relaxation, count, seed):
        choice = choice_of(problem, relaxation, plan)
        assert choice is not None
        time_s = problem.prices.totals(*plan).time_s
        most = max(most, relaxed_s(relaxation, choice) / time_s - 1.0)
    return most


@pytest.mark.parametrize(
    ("name", "mesh", "machine", "count", "seed"),
    [
        ("whole numbers", "2x4", "tpu-v5e", 600, 0),  # numbers of a value, beside its bytes
        ("products", "4x2", "tpu-v3", 600, 0),  # a sum that is gathered behind its product
        ("convolution", "4x2", "tpu-v3", 600, 0),
        ("embeddings", "8", "tpu-v5p", 600, 0),  # an operand that is written unless it is copied
        ("corpus neural_ode", "2x4", "tpu-v5e", 40, 23),  # a kernel alone, unless it cuts out
        ("corpus state_space", "2x4", "tpu-v5e", 30, 2),  # a product that waits in windows
    ],
)
def test_a_relaxed_price_is_a_bound_where_it_was_none_once(
    name: str, mesh: str, machine: str, count: int, seed: int
) -> None:
    problem = Problem(_analysis(name), mesh=mesh, machine=machine)
    assert _most_above(problem, count, seed) <= CLOSE - 1.0


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in (*MIXED, *ZOO, *CORPUS)
    ],
)
def test_a_relaxed_price_is_a_bound(name: str) -> None:
    """On one place each; on all of them, with more plans, if all programs are tried."""
    rng = np.random.default_rng([SEED, len(name)])
    places, count = [PLACES[rng.integers(len(PLACES))]], 60
    if sampling.begin() == sampling.ALL:
        places, count = list(PLACES), 300
    above = {}
    for mesh, machine in places:
        seed = int(rng.integers(1 << 30))
        most = _most_above(Problem(_analysis(name), mesh=mesh, machine=machine), count, seed)
        if most > CLOSE - 1.0:
            above[mesh, machine, seed] = most
    assert not above, f"relaxed prices above those of plans, by place and seed: {above}"


def test_a_term_is_added_to_the_bound_in_one_place() -> None:
    """Suppose that each op which is split on two axes took a microsecond longer."""
    problem = Problem(_analysis("products"), mesh="2x4", machine="tpu-v5e")
    fee_s, n_arguments = 1e-6, problem.analysis.program.n_arguments

    def fees(builder: RelaxationBuilder) -> None:
        tables, times = builder.tables, builder.folded.times
        for op in range(tables.n_arguments, len(tables.op_row)):
            row = int(tables.op_row[op])
            is_charged = (builder.menus[row] >= 0).sum(axis=1) == 2
            builder.add_to(row, times[op] * fee_s * is_charged)

    relaxation, without = relax(problem, terms=(*TERMS, fees)), relax(problem)
    charged = 0
    for plan in random_states(problem, relaxation, 100, SEED):
        choice = choice_of(problem, relaxation, plan)
        count = ((plan[0][n_arguments:] >= 0).sum(axis=1) == 2).sum()
        time_s = problem.prices.totals(*plan).time_s + fee_s * count
        with_fees_s = relaxed_s(relaxation, choice)
        assert with_fees_s == pytest.approx(relaxed_s(without, choice) + fee_s * count, rel=1e-9)
        assert with_fees_s <= time_s * CLOSE
        charged += count > 0
    assert charged > 10


@pytest.mark.parametrize("name", MIXED)
def test_a_value_is_brought_at_the_price_of_the_evaluator(name: str) -> None:
    """``PricedTerms`` knows of a use only what is its key; the evaluator knows everything."""
    mesh, machine = PLACES[(SEED + len(name)) % len(PLACES)]
    problem = Problem(_analysis(name), mesh=mesh, machine=machine)
    rows = problem.space.alike
    op_menus, value_menus = make_menus(problem, rows.ops, rows.values)
    terms = PricedTerms(problem.prices.folded(rows), op_menus, ahead_of=np.inf)
    tables = terms.folded.tables
    for use, value in enumerate(tables.use_value.tolist()):
        op = int(tables.use_op[use])
        if tables.value_constant[value] or op < tables.n_arguments:
            continue
        layouts = np.unique(packed_layouts(value_menus[tables.value_row[value]]))
        exact_s, _ = use_costs(terms.op_pricer, op, use, layouts, layouts)
        time_s = terms.bringing_s(op, use, layouts, layouts)
        np.testing.assert_allclose(time_s, exact_s, rtol=1e-12, atol=1e-18)
