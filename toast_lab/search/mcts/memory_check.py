"""Check the memory that ``mcts`` keeps in a trace; kernels read it without checking bounds.

Shapes and kinds are checked first, then all indices, then facts that follow from others: nodes are
reached by the choices of their parents, a closed subtree has only closed subtrees below, prices are
those of simulations, and the elites and the states of refinement agree with the keys and prices
kept for them. A number that passes all checks can steer a search elsewhere, but can neither make it
leave its arrays nor state something false.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.packs import dtypes
from toast_lab.search.mcts import refine
from toast_lab.search.mcts import tree as tr
from toast_lab.search.mcts.improvement import ARCHIVE_SIZE
from toast_lab.search.plan_arrays import array_offenders
from toast_lab.search.trace_check import FORMULA_TOLERANCE, PRICE_TOLERANCE, outside
from toast_lab.sharding.state import State

if TYPE_CHECKING:
    from toast_lab.search.method_options import MctsOptions
    from toast_lab.search.trace import Trace

MAX_REPLAYED_NODES = 200  #: number of nodes, spread over the tree, whose actions are replayed
_MOST = 2**31 - 1
_HIGHEST = 30.0  # limit of rewards, which are at most -log of scores of at least 1e-12
_LOWEST = -1e6


def offenders(problem: Problem, trace: Trace, options: MctsOptions) -> Iterator[str]:
    """Offences of the memory of a trace of ``mcts``, a sentence each.

    Args:
        problem: the problem to search.
        trace: the trace of an earlier search of it; all of it but ``memory`` has been checked.
        options: the options of the resumed search.
    """
    memory = trace.memory
    if not memory:
        if (trace.row.n, trace.node.n, len(trace.vocabulary)) != (1, 1, 0):
            yield (
                f"it has {trace.row.n} simulations and {trace.node.n} nodes, but lacks the tree "
                "that they come from"
            )
        return
    depth = options.depth
    n_codes = problem.space.n_moves * len(problem.mesh.axes)
    # Generators, since each stage relies on the checks of the stages before it.
    stages = (
        _kinds(problem, trace, depth, n_codes),
        _tree(problem, trace, depth, n_codes),
        _choices(problem, trace),
        _tables(trace),
        _elites(problem, trace, n_codes),
        _refinement(problem, trace, depth, n_codes),
    )
    for stage in stages:
        if offences := list(stage):
            yield from offences
            return
    if memory["refine"][3] and not options.solve:
        yield (
            "integer programs are its next step, and solve=False turns them off: resume it with "
            "solve=True"
        )
    most_fruitless = options.restarts + 1
    if offence := outside(memory["round"][3:], 0, most_fruitless):
        yield f"memory.round: the number of fruitless starts is out of range, {offence}"


def _kinds(problem: Problem, trace: Trace, depth: int, n_codes: int) -> Iterator[str]:
    """Check that every array is present, with the right dtype and shape."""
    memory = dict(trace.memory)
    counters = memory.get("tree.number")

    def length(name: str) -> int:
        return len(memory[name]) if name in memory and memory[name].ndim else 0

    shapes = tr.tree_shapes(
        nodes=trace.node.n,
        choices=int(counters[tr.CHOICES])
        if counters is not None and counters.shape == (10,)
        else 0,
        slots=length("tree.slot_key"),
        prices=length("tree.price_key"),
        actions=n_codes,
        depth=depth,
    )
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        f"tree.{name}": (dtypes(tr.Tree)[name], shape) for name, shape in shapes.items()
    }
    expected |= {"round": (np.int64, (4,)), "before": (float, (3,)), "refine": (np.int64, (6,))}
    archive_shapes = [
        memory[name].shape for name in ("archive.ops", "archive.values") if name in memory
    ]
    archive_size = max((shape[0] for shape in archive_shapes if len(shape) == 3), default=0)
    n_axes, rows = len(problem.mesh.axes), (0, 0)
    has_chains = any(name.startswith(("chain.", "origin.")) for name in memory)
    if archive_size or has_chains:
        alike = refine.fine_rows(problem)
        rows = len(alike.ops.first), len(alike.values.first)
    states = ((np.int32, (rows[0], n_axes)), (np.int8, (rows[1], n_axes)))
    if archive_size:
        expected["archive.ops"], expected["archive.values"] = (
            (kind, (archive_size, *sizes)) for kind, sizes in states
        )
    elif all(
        name in memory and memory[name].shape == (0, 0, 0)
        for name in ("archive.ops", "archive.values")
    ):
        del memory["archive.ops"], memory["archive.values"]  # empty: any dtype will do
    else:
        expected["archive.ops"] = expected["archive.values"] = (np.int32, (0, 0, 0))
    if has_chains:
        chains, pool = refine.CHAINS, refine.CHAINS + archive_size
        (_, ops), (_, values) = states
        chain_shapes = {
            **dict.fromkeys(("ops", "best_ops"), (chains, *ops)),
            **dict.fromkeys(("values", "best_values"), (chains, *values)),
            "pool_ops": (pool, *ops),
            "pool_values": (pool, *values),
            **dict.fromkeys(("price", "best"), (chains, 2)),
            "random": (chains, 1),
            **dict.fromkeys(("origin", "priced"), (chains,)),
        }
        expected |= {
            f"chain.{name}": (dtypes(refine.Chains)[name], shape)
            for name, shape in chain_shapes.items()
        }
        codes = memory["origin.code"].size if "origin.code" in memory else 0
        expected["origin.code"] = np.int32, (codes,)
        expected["origin.end"] = np.int64, (length("origin.end"),)
    if missing := sorted(set(expected) - set(memory)):
        yield f"it lacks memory.{', memory.'.join(missing)}"
    if foreign := sorted(set(memory) - set(expected)):
        yield (
            "mcts keeps no array called "
            f"memory.{', memory.'.join(name[:40] for name in foreign[:6])}"
        )
    for name, (dtype, shape) in expected.items():
        if name in memory and (memory[name].dtype != dtype or memory[name].shape != shape):
            yield (
                f"memory.{name} must be {np.dtype(dtype)} of shape {shape}, but it is "
                f"{memory[name].dtype} of shape {memory[name].shape}"
            )


def _tree(problem: Problem, trace: Trace, depth: int, n_codes: int) -> Iterator[str]:
    """Check counters, the columns of nodes and choices, and the texts of actions."""
    tree, row = _tree_arrays(trace), trace.row
    counters = tree["number"]
    fixed = {
        tr.NODES: ("nodes", trace.node.n),
        tr.CHOICES: ("choices", len(tree["action"])),
        tr.BEST: ("the best simulation", int(row["best"][-1])),
        tr.PRICED: ("priced states", int(np.count_nonzero(tree["price_key"])) - 1),
    }
    for counter, (noun, count) in fixed.items():
        if counters[counter] != count:
            yield (
                f"memory.tree.number has {counters[counter]} for {noun}, but the trace has {count}"
            )
    if offence := outside(counters, 0, 2**62):
        yield f"memory.tree.number is out of range, {offence}"
    start = int(counters[tr.START])
    ranges: dict[str, tuple[float, float]] = {
        "tree.reward": (_LOWEST, _HIGHEST),
        "tree.choice": (0, len(tree["action"])),
        "tree.choices": (-1, len(tree["action"])),
        "tree.start": (0, start),
        "tree.action": (0, n_codes - 1),
        "tree.child": (-1, trace.node.n - 1),
        "tree.tried": (0, _MOST),
        "tree.under_way": (0, 0),
        "tree.total": (-1e300, 1e300),
        "tree.best": (-np.inf, _HIGHEST),
        "tree.price": (0.0, np.finfo(float).max),
        "tree.seen": (-1e300, 1e300),
        "tree.elite_length": (0, depth),
        "round": (0, _MOST),
        "before": (_LOWEST, np.finfo(float).max),
        "refine": (0, 2**62),
    }
    for name, (least, most) in ranges.items():
        if offence := outside(trace.memory[name], least, most):
            yield f"memory.{name} is out of range, {offence}"
    if offence := outside(trace.memory["refine"][2:], 0, 1):
        yield f"memory.refine is out of range, {offence}"
    if offence := outside(counters[tr.ELITES : tr.ELITES + 1], 1, tr.MAX_ELITES):
        yield f"memory.tree.number of elites is out of range, {offence}"
    if offence := outside(tree["seen"][:, 0], 0.0, 1e300):
        yield f"memory.tree.seen is out of range, {offence}"
    tried = np.maximum(tree["tried"], 1)
    mean, best = tree["total"] / tried, np.where(tree["tried"] > 0, tree["best"], np.inf)
    if (mean > best + 1e-6 * np.maximum(1.0, np.abs(best))).any() or (mean < _LOWEST).any():
        choice = int(np.argmax(mean - best))
        tries = f"{tree['tried'][choice]} tries, the best of them {best[choice]:g}"
        yield f"memory.tree.total of choice {choice} is {tree['total'][choice]:g} for {tries}"
    node_depth = trace.node["depth"]
    is_wrong = node_depth[1:] != node_depth[trace.node["parent"][1:]] + 1
    if is_wrong.any():
        yield f"node.depth of node {1 + int(np.argmax(is_wrong))} is not one more than its parent's"
    if offence := outside(node_depth, 0, depth):
        yield f"node.depth is out of range, {offence}"
    if offence := outside(trace.node["word"][1:], 0, n_codes - 1):
        yield f"node.word is out of range, {offence}"
    space, axes = problem.space, len(problem.mesh.axes)
    for code in range(n_codes):
        text = space.text(space.action(*divmod(code, axes)))
        if code >= len(trace.vocabulary) or trace.vocabulary[code] != text:
            given = trace.vocabulary[code][:60] if code < len(trace.vocabulary) else "nothing"
            yield f"vocabulary {code} is {given!r}, the problem's action of this number is {text!r}"
            return


def _choices(problem: Problem, trace: Trace) -> Iterator[str]:
    """Check the choices of nodes.

    Each choice has one owner, each node is a choice of its parent, and all nodes below a closed
    node are closed.
    """
    tree, node = _tree_arrays(trace), trace.node
    choices = np.maximum(tree["choices"], 0).astype(np.int64)
    with_choices = np.flatnonzero(choices)
    order = with_choices[np.argsort(tree["choice"][with_choices], kind="stable")]
    ends = np.cumsum(choices[order])
    total = int(ends[-1]) if len(ends) else 0
    if total != len(tree["action"]) or not np.array_equal(
        tree["choice"][order], ends - choices[order]
    ):
        yield "memory.tree.choice and memory.tree.choices do not divide the choices among the nodes"
        return
    owner = np.repeat(order, choices[order])
    child = tree["child"]
    with_child = np.flatnonzero(child > 0)
    is_match = (owner[with_child] == node["parent"][child[with_child]]) & (
        tree["action"][with_child] == node["word"][child[with_child]]
    )
    reached = np.zeros(node.n, bool)
    reached[child[with_child[is_match]]] = True
    if not reached[1:].all():
        node_number = 1 + int(np.argmin(reached[1:]))
        yield (
            f"memory.tree.child: no choice of node {node['parent'][node_number]} leads to its "
            f"child, node {node_number}"
        )
    open_below = np.zeros(node.n, bool)
    open_choice = (child < 0) | ~tree["closed"][np.maximum(child, 0)]
    open_below[owner[open_choice]] = True
    is_early = tree["closed"] & (open_below | (tree["choices"] < 0))
    if is_early.any():
        yield (
            f"memory.tree.closed says that everything below node {int(np.argmax(is_early))} was "
            "priced, but it was not"
        )
    idle = ~tree["closed"] & (tree["choices"] == 0)
    if idle.any():
        yield f"memory.tree.closed: node {int(np.argmax(idle))} is open without any choice"
    for node_number in np.unique(
        np.linspace(0, node.n - 1, min(node.n, MAX_REPLAYED_NODES)).astype(np.int64)
    ).tolist():
        codes, ancestor = [], node_number
        while ancestor > 0:
            codes.append(int(node["word"][ancestor]))
            ancestor = int(node["parent"][ancestor])
        key, idle = _reached(problem, codes[::-1])
        if idle is not None or key != int(node["key"][node_number]):
            yield (
                f"node.key of node {node_number} is {int(node['key'][node_number]):016x}, its "
                f"actions lead to {key:016x}"
            )
            return


def _tables(trace: Trace) -> Iterator[str]:
    """Check the hash tables: they hold every node, and every price is that of a simulation."""
    tree, node, row = _tree_arrays(trace), trace.node, trace.row
    for name in ("slot_key", "price_key"):
        size, filled = len(tree[name]), int(np.count_nonzero(tree[name]))
        if size < 4 or size & (size - 1) or 2 * filled > size:
            yield (
                f"memory.tree.{name} has {size} places for {filled} keys, not a power of two that "
                "is half free"
            )
        elif len(np.unique(tree[name][tree[name] != 0])) != filled:
            yield f"memory.tree.{name} holds a key twice"
    keys = np.where(node["key"] == 0, np.uint64(1), node["key"])
    if len(np.unique(keys)) != node.n:
        yield "node.key: two nodes have one key"
    used = np.flatnonzero(tree["slot_key"])
    nodes = tree["slot_node"][used]
    if (
        outside(nodes, 0, node.n - 1)
        or len(used) != node.n
        or (keys[nodes] != tree["slot_key"][used]).any()
    ):
        yield (
            f"memory.tree.slot_key and memory.tree.slot_node do not lead to the {node.n} nodes by "
            "their keys"
        )
        return
    used = np.flatnonzero(tree["price_key"])
    simulated = _pairs(row["time_s"], row["peak_bytes"])
    is_unknown = ~np.isin(_pairs(*tree["price"][used].T), simulated)
    if is_unknown.any():
        slot = int(used[np.argmax(is_unknown)])
        yield (
            f"memory.tree.price at {slot}, {tree['price'][slot, 0]:g} s and "
            f"{tree['price'][slot, 1]:g} bytes, belongs to no simulation"
        )
        return
    order = used[np.argsort(tree["price_key"][used])]
    position = np.minimum(np.searchsorted(tree["price_key"][order], keys), len(order) - 1)
    is_missing = tree["price_key"][order][position] != keys
    if is_missing.any():
        yield f"memory.tree.price_key lacks node {int(np.argmax(is_missing))}"
        return
    # Every price is that of a simulation, whose score has been compared with it already.
    by_price = np.argsort(simulated, kind="stable")
    simulation = by_price[
        np.searchsorted(simulated[by_price], _pairs(*tree["price"][order][position].T))
    ]
    is_off = ~(
        np.abs(row["score"][simulation] - node["score"])
        <= FORMULA_TOLERANCE * np.maximum(1.0, node["score"])
    )
    if is_off.any():
        node_number = int(np.argmax(is_off))
        yield (
            f"node.score of node {node_number} is {node['score'][node_number]:g}, but its price "
            f"gives {row['score'][simulation][node_number]:g}"
        )


def _elites(problem: Problem, trace: Trace, n_codes: int) -> Iterator[str]:
    """Check that the elites' actions lead to their keys, and that the best elite comes first."""
    tree = _tree_arrays(trace)
    elites = [
        codes[:length] for codes, length in zip(tree["elite"], tree["elite_length"], strict=True)
    ]
    for elite, codes in enumerate(elites):
        if offence := outside(codes, 0, n_codes - 1):
            yield f"memory.tree.elite {elite}: an action is out of range, {offence}"
    count = int(tree["number"][tr.ELITES])
    reward = tree["elite_reward"]
    if offence := outside(reward[:count], _LOWEST, _HIGHEST):
        yield f"memory.tree.elite_reward is out of range, {offence}"
        return
    if np.isnan(reward).any() or (np.diff(reward[:count]) > 0).any():
        yield "memory.tree.elite_reward does not descend"
        return
    for elite, codes in enumerate(elites[:count]):
        if outside(codes, 0, n_codes - 1):
            continue
        key, idle = _reached(problem, codes.tolist())
        if idle is not None or key != int(tree["elite_key"][elite]):
            yield (
                f"memory.tree.elite_key {elite} is {int(tree['elite_key'][elite]):016x}, its "
                f"actions lead to {key:016x}"
            )


def _refinement(problem: Problem, trace: Trace, depth: int, n_codes: int) -> Iterator[str]:
    """Check that the states of refinement are plans of the problem with the prices kept."""
    memory = trace.memory
    segment, _, chains, solving, _, arrived = (int(number) for number in memory["refine"])
    archive_size, has_chains = len(memory["archive.ops"]), "chain.ops" in memory
    is_off = bool(chains) != has_chains or (
        (solving or arrived) and (has_chains or not archive_size)
    )
    if is_off or archive_size > ARCHIVE_SIZE:
        yield (
            f"memory.refine says chains={chains}, solving={solving} and arrived={arrived}, with "
            f"{archive_size} states in memory.archive "
            f"(at most {ARCHIVE_SIZE}) and {'some' if has_chains else 'no'} memory.chain"
        )
        return
    if segment > _MOST:
        yield f"memory.refine: step {segment} is out of range"
    if not archive_size and not has_chains:
        return
    states: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    if archive_size:
        states["archive."] = memory["archive.ops"], memory["archive.values"]
    if has_chains:
        end, code = memory["origin.end"], memory["origin.code"]
        steps = np.diff(end, prepend=0)
        if not len(end) or (steps < 0).any() or (steps > depth).any() or end[-1] != len(code):
            yield f"memory.origin.end does not divide the {len(code)} actions of memory.origin.code"
            return
        for name, numbers, least, most in (
            ("origin.code", code, 0, n_codes - 1),
            ("chain.origin", memory["chain.origin"], 0, len(end) - 1),
            ("chain.priced", memory["chain.priced"], 0, 2**62),
            ("chain.price", memory["chain.price"], 0.0, np.finfo(float).max),
            ("chain.best", memory["chain.best"], 0.0, np.finfo(float).max),
        ):
            if offence := outside(numbers, least, most):
                yield f"memory.{name} is out of range, {offence}"
        for prefix in ("", "best_", "pool_"):
            states[f"chain.{prefix}"] = (
                memory[f"chain.{prefix}ops"],
                memory[f"chain.{prefix}values"],
            )
    alike, program = refine.fine_rows(problem), problem.analysis.program
    priced = {"chain.": "price", "chain.best_": "best"}
    pricer = problem.pricer()
    known_prices: dict[bytes, tuple[float, float]] = {}
    for name, (ops, values) in states.items():
        for i in range(len(ops)):
            offence = outside(ops[i], -1, program.n_factors - 1) or outside(values[i], -1, 127)
            if offence:
                yield f"memory.{name}ops or memory.{name}values, state {i}: out of range, {offence}"
                return
            digest = ops[i].tobytes() + values[i].tobytes()
            if digest not in known_prices:
                whole = alike.whole(program, ops[i], values[i])
                if offences := list(array_offenders(problem, f"memory.{name}state {i}: ", *whole)):
                    yield from offences
                    return
                totals = pricer.totals(*whole) if name in priced else None
                if totals is not None:
                    known_prices[digest] = totals.time_s, totals.peak_bytes
            if name not in priced:
                continue
            given = memory[f"chain.{priced[name]}"][i]
            if (
                np.abs(given - known_prices[digest])
                > PRICE_TOLERANCE * np.abs(known_prices[digest])
            ).any():
                time_s, peak_bytes = known_prices[digest]
                yield (
                    f"memory.chain.{priced[name]} of state {i} is {given[0]:g} s and {given[1]:g} "
                    "bytes, the state has "
                    f"{time_s:g} s and {peak_bytes:g} bytes"
                )
                return


def _tree_arrays(trace: Trace) -> dict[str, np.ndarray]:
    """The arrays of the tree by name."""
    return {
        name.removeprefix("tree."): array
        for name, array in trace.memory.items()
        if name.startswith("tree.")
    }


def _pairs(time_s: np.ndarray, peak_bytes: np.ndarray) -> np.ndarray:
    """Two columns as one column of complex numbers, which can be sorted and looked up."""
    return np.asarray(time_s, complex) + 1j * np.asarray(peak_bytes)


def _reached(problem: Problem, codes: list[int]) -> tuple[int, int | None]:
    """(key of the state after some actions, the first action that changes nothing or None)."""
    state, idle = State(problem.space), None
    for code in codes:
        if not state.apply_row(*divmod(code, len(problem.mesh.axes))) and idle is None:
            idle = code
    return state.key, idle
