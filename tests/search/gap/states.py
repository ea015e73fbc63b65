"""Plans from the space for which a bound is proven, and what a relaxation says of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.search.gap.dual_ascent import Ascent
from toast_lab.search.gap.relaxation import Relaxation
from toast_lab.sharding import steps

CLOSE = 1.0 + 1e-9  # for sums that are rounded in another order
Arrays = tuple[np.ndarray, np.ndarray]


def random_states(
    problem: Problem, relaxation: Relaxation, count: int, seed: int = 0
) -> Iterator[Arrays]:
    """Plans with each row of ops and values drawn independently, from few cuts to many."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        often = (number + 1) / count

        def rows(menus: list[np.ndarray], often: float = often) -> np.ndarray:
            return np.stack(
                [menu[rng.integers(len(menu)) if rng.random() < often else 0] for menu in menus]
            )

        ops, values = rows(relaxation.menus), rows(relaxation.value_menus)
        yield relaxation.alike.whole(
            problem.analysis.program, ops.astype(np.int32), values.astype(np.int8)
        )


def choice_of(problem: Problem, relaxation: Relaxation, plan: Arrays) -> np.ndarray | None:
    """[N] the choice of each node that a plan makes; None if it is not in the space."""
    rows, (op_factor, value_dim), program = relaxation.alike, plan, problem.analysis.program
    ops, values = op_factor[rows.ops.first], value_dim[rows.values.first]
    whole_ops, whole_values = rows.whole(program, ops, values)
    computed = slice(program.n_arguments, None)
    differs = (whole_values != value_dim)[~np.asarray(program.value_is_constant)]
    if (whole_ops != op_factor)[computed].any() or differs.any():
        return None
    if not all(
        (menu == row).all(axis=1).any()
        for menu, row in zip(relaxation.value_menus, values, strict=True)
    ):
        return None
    choice = np.zeros(len(relaxation.time_s), np.int64)
    kept = steps.kept_layouts(relaxation.folded.tables, ops, values)
    n_rows = len(relaxation.menus)
    chosen = [(node, (menu == ops[node]).all(axis=1)) for node, menu in enumerate(relaxation.menus)]
    chosen += [
        (node, relaxation.layouts[node - n_rows] == kept[value])
        for value, node in enumerate(relaxation.value_node.tolist())
        if node >= 0
    ]
    for node, is_chosen in chosen:
        if not is_chosen.any():
            return None
        choice[node] = is_chosen.argmax()
    return choice


def relaxed_s(relaxation: Relaxation, choice: np.ndarray) -> float:
    """The least seconds of a choice for each node."""
    total = sum(float(times[index]) for times, index in zip(relaxation.time_s, choice, strict=True))
    return total + sum(
        float(edge.time_s[edge.label[choice[edge.op]], choice[edge.value]])
        for edge in relaxation.edges
    )


def swept_s(ascent: Ascent, choice: np.ndarray) -> float:
    """The same with the parts that the sweeps gave to uses that share copies."""
    graph = ascent.restated()
    total = float(graph.price[graph.node_ptr[:-1] + choice].sum())
    label = graph.label[graph.label_ptr[:-1] + choice[graph.edge_node[::2]]]
    entry = graph.edge_ptr[:-1] + label * graph.n_layouts + choice[graph.edge_node[1::2]]
    return total + float(graph.table[entry].sum())
