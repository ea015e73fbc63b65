"""Compare our collectives of a plan with Shardy's, value by value, and explain differences.

The two agree on what a plan means if they give every value the same shardings: at its definition
and at each of its uses. The route from one to the other is a choice, and the two sometimes choose
differently. A difference is ascribed to the route only if the shardings at both ends are equal.
Each reason is checked on the layouts and steps of the value, and a difference that no check
explains has the reason ``""``.

Example: partial sums over ``d`` and ``m`` whose result is kept split over ``m``. We use a
reduce_scatter over m and then an all_reduce over d of the remaining quarter; Shardy sums everything
over both and then slices. The reason is ``SUM_THEN_SLICE``.

Reference: TOAST section 2.1; Shardy's reshard-to-collectives. Start reading at
``compare_with_shardy``.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evaluation.certification.shardy import lowering
from evaluation.certification.shardy.lowering import Lowered, Transfer
from toast_lab import _jaxlib
from toast_lab.ir import canonical, op_kinds, walk
from toast_lab.ir import program as p
from toast_lab.sharding import steps as st
from toast_lab.sharding.plan import ShardingPlan, Spec
from toast_lab.sharding.step_kinds import SLICE

if TYPE_CHECKING:
    from toast_lab.ir.model import Model

# -- routes between equal ends ---------------------------------------------------------------------
STRAIGHT = (
    "Shardy goes straight from the definition to the uses, ours by way of the sharding in "
    "which it is kept"
)
SUM_THEN_SLICE = (
    "sums over several axes, some of them scattered: Shardy sums over all of them and slices"
)
SUM_FOR_OTHERS = (
    "Shardy sums once for all uses, ours scatters the sum and gathers it where it is wanted whole"
)
SLICE_FIRST = "ours slices before it sums, Shardy sums and then slices"
SWAP = "two axes change dims by a permute alone, ours by all_to_alls"
SAME_SIZE = (
    "the shards of two axes (or parts of axes) of equal size change places: the other "
    "one does the exchange"
)
NO_PERMUTE = "the same exchanges in an order that needs no permute, or fewer"
PARTS = "Shardy exchanges or gathers parts of an axis where ours takes whole axes"
ALL_AT_ONCE = "one all_to_all for several pairs of dims"
OTHER_ROUTE = "another route between the same shardings"
# -- other reasons ---------------------------------------------------------------------------------
OTHER_RULE = "Shardy has no rule, or a narrower one, for an op that makes or uses it"
RESHAPED = (
    "Shardy moves the value on one side of a reshape and takes that copy for uses on the other side"
)
CONSTANT = "made of constants, which our steps remake where they are used"
NOT_LOWERED = "Shardy's passes fail on this program"
UNEXPLAINED = ""

REASONS = (
    STRAIGHT,
    SUM_THEN_SLICE,
    SUM_FOR_OTHERS,
    SLICE_FIRST,
    SAME_SIZE,
    SWAP,
    NO_PERMUTE,
    PARTS,
    ALL_AT_ONCE,
    OTHER_ROUTE,
    OTHER_RULE,
    RESHAPED,
    CONSTANT,
    NOT_LOWERED,
)


class Difference(NamedTuple):
    """One value whose collectives differ between our steps and Shardy's lowering."""

    value: int  #: -1: a value that Shardy's passes added
    name: str
    where: str  #: source line of the op that makes it
    ours: tuple[Transfer, ...]
    theirs: tuple[Transfer, ...]
    reason: str  #: one of REASONS, or "" if none applies

    @property
    def bytes(self) -> tuple[float, float]:
        """Bytes that our and Shardy's collectives handle on one device."""
        return sum(t.bytes for t in self.ours), sum(t.bytes for t in self.theirs)

    def __str__(self) -> str:
        mine, other = ("; ".join(map(str, side)) or "nothing" for side in (self.ours, self.theirs))
        return (
            f"{self.name} ({self.where}): {mine} | Shardy: {other} | {self.reason or 'unexplained'}"
        )


class Comparison(NamedTuple):
    """The comparison of one plan."""

    n_ours: int
    n_theirs: int
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Are the collectives of all values equal in kind, axes and bytes?"""
        return not self.differences

    @property
    def unexplained(self) -> list[Difference]:
        """Differences to which no reason applies."""
        return [d for d in self.differences if not d.reason]


def compare_with_shardy(model: Model, plan: ShardingPlan) -> Comparison:
    """Lower ``plan`` with Shardy in a child process, and compare its collectives with ours."""
    return compare_many(model, [plan])[0]


def compare_many(
    model: Model, plans: Sequence[ShardingPlan], *, time_limit_s: float = 300.0
) -> list[Comparison]:
    """``compare_with_shardy`` for several plans of one model, in one child process."""
    narrower = ops_of_other_rule(model)
    lowered = lowering.lower_with_shardy(model, plans, time_limit_s=time_limit_s)
    return [compare(plan, found, narrower) for plan, found in zip(plans, lowered, strict=True)]


def compare(plan: ShardingPlan, lowered: Lowered, narrower: frozenset[int]) -> Comparison:
    """Compare one plan; ``narrower`` is ``ops_of_other_rule`` of the model."""
    if lowered.failure:
        return Comparison(
            len(list(lowering.ours(plan))), 0, (Difference(-1, "", "", (), (), NOT_LOWERED),)
        )
    mine = lowering.by_value(lowering.ours(plan))
    other = lowering.by_value(lowering.theirs(plan, lowered.collectives))
    judge = _Judge(plan, lowered, narrower)
    differences = []
    for value in sorted({*mine, *other}):
        a, b = mine.get(value, []), other.get(value, [])
        if collections.Counter(a) != collections.Counter(b):
            name, where = "something that Shardy made", "unknown line"
            if value >= 0:
                name = plan.program.value_name[value]
                where = plan.program.where(int(plan.program.value_op[value]))
            differences.append(
                Difference(value, name, where, tuple(a), tuple(b), judge.reason(value, a, b))
            )
    return Comparison(
        sum(map(len, mine.values())), sum(map(len, other.values())), tuple(differences)
    )


@functools.lru_cache(maxsize=4)
def ops_of_other_rule(model: Model) -> frozenset[int]:
    """Ops that our rules can split further than Shardy's.

    Shardy either does not split them along some factor, or has no rule for them.
    """
    program = model.program
    context = _jaxlib.make_context()
    module = _jaxlib.parse_module(context, model.stablehlo)
    _jaxlib.populate_rules(module)
    items = walk.flatten(canonical.main_function(module).regions[0].blocks[0]).items
    found = set()
    for number, item in zip(program.ops(), items, strict=True):
        if op_kinds.is_control(item.kind):
            continue
        rule = _jaxlib.rule_of(item.operation)
        own = program.factors(number)
        free = [f - own.start for f in own if program.factor_class[f] in (p.PASS, p.REDUCTION)]
        whole = set() if rule is None else {*rule["need_replication"], *rule["permutation"]}
        if free and (rule is None or any(f in whole or f >= len(rule["sizes"]) for f in free)):
            found.add(number)
    return frozenset(found)


class _Judge:
    """Finds the reason for a difference from a plan's layouts and Shardy's lowering of the plan."""

    def __init__(self, plan: ShardingPlan, lowered: Lowered, narrower: frozenset[int]) -> None:
        self.plan, self.program, self.rows = plan, plan.program, lowered.collectives
        self.narrower = narrower
        self.roots = lowering.root_values(plan.program, self.rows)
        self.moved = {int(plan.program.result_ptr[op]) + result for op, result in lowered.reshaped}
        self.kept = plan.value_specs()
        self.natural = plan.lowered.natural
        self.used = plan.lowered.used
        steps = st.lower(plan.program, plan.op_factor, plan.value_dim, plan.mesh.array())
        self.sliced = {
            int(steps.value[i]) for i in np.flatnonzero((steps.kind == SLICE) & (steps.use < 0))
        }
        self.outputs = {int(v) for v in plan.program.outputs}
        self.uses: dict[int, list[int]] = collections.defaultdict(list)
        self.users: dict[int, list[int]] = collections.defaultdict(list)
        for op in plan.program.ops():
            for use in range(int(plan.program.use_ptr[op]), int(plan.program.use_ptr[op + 1])):
                self.uses[int(plan.program.use_value[use])].append(use)
                self.users[int(plan.program.use_value[use])].append(op)

    def reason(self, value: int, mine: list[Transfer], other: list[Transfer]) -> str:
        """The first reason that applies."""
        if value < 0:
            return UNEXPLAINED
        if self.program.value_is_constant[value]:
            return CONSTANT if not mine else UNEXPLAINED
        if self.same_ends(value):
            return self.route(value, mine, other)
        touched = {int(self.program.value_op[value]), *self.users[value]}
        if any(op in self.narrower and (self.plan.op_factor[op] >= 0).any() for op in touched):
            return OTHER_RULE
        if self.across_a_reshape(value):
            return RESHAPED
        return UNEXPLAINED

    def across_a_reshape(self, value: int) -> bool:
        """Did Shardy move a copy of this value in another shape?

        A copy of an operand of the value's op counts as well.
        """
        near = {value, *self.program.operands(int(self.program.value_op[value]))}
        return any(near & self.reshapes_of(root) for root in self.moved)

    def reshapes_of(self, value: int) -> set[int]:
        """The value and all values that reshapes make of it."""
        found, todo = {value}, [value]
        while todo:
            v = todo.pop()
            op = int(self.program.value_op[v])
            next_to = (
                set(self.program.operands(op)) if self.program.kind[op] == "reshape" else set()
            )
            for user in self.users[v]:
                if self.program.kind[user] == "reshape":
                    next_to |= set(self.program.results(user))
            todo += next_to - found
            found |= next_to
        return found

    def same_ends(self, value: int) -> bool:
        """Does Shardy start from the same sharding as we do, and deliver the same ones to uses?

        The start is the sharding in which our op leaves the value.
        """
        start = self.natural[value]
        wanted = {self.used[u] for u in self.uses[value]}
        if value in self.outputs:
            wanted.add(self.kept[value])
        delivered = set()
        for row, root in zip(self.rows, self.roots, strict=True):
            if root != value:
                continue
            if row.parent < 0 and row.before != start:
                return False
            if row.read:
                delivered.add(row.after)
        # A use that reads the value as the op leaves it needs no collective, so its sharding is
        # not among those delivered.
        return delivered <= wanted | {start} and wanted <= delivered | {start}

    def route(self, value: int, mine: list[Transfer], other: list[Transfer]) -> str:
        """The reason why two routes between the same ends differ."""
        sums, their_sums = _axes(mine, "all_reduce"), _axes(other, "all_reduce")
        scattered, their_scattered = _axes(mine, "reduce_scatter"), _axes(other, "reduce_scatter")
        if (scattered - their_scattered) and scattered - their_scattered <= their_sums:
            our_rest = [t for t in mine if t.kind not in ("reduce_scatter", "all_reduce")]
            their_rest = [t for t in other if t.kind not in ("reduce_scatter", "all_reduce")]
            if sums and self.sizes(our_rest) == self.sizes(their_rest):
                return SUM_THEN_SLICE
            return SUM_FOR_OTHERS
        if self.sizes(mine) == self.sizes(other):
            return SAME_SIZE
        if self.kept_for_nothing(value):
            return STRAIGHT
        mine_rest, their_rest = (
            [t for t in transfers if t.kind != "permute"] for transfers in (mine, other)
        )
        fewer = len(mine) - len(mine_rest) > len(other) - len(their_rest)
        if fewer and self.sizes(mine_rest) == self.sizes(their_rest):
            return NO_PERMUTE
        if self.in_parts(value):
            return PARTS
        if [t[1:3] for t in mine] == [t[1:3] for t in other] and value in self.sliced:
            return SLICE_FIRST
        fewer_moves = _axes(mine, "all_to_all") - _axes(other, "all_to_all")
        if fewer_moves and _count(mine) > _count(other) and fewer_moves <= _axes(other, "permute"):
            return SWAP
        if (
            _axes(mine, "all_to_all") == _axes(other, "all_to_all")
            and _count(mine) > _count(other) > 0
        ):
            return ALL_AT_ONCE
        return OTHER_ROUTE

    def sizes(self, transfers: Sequence[Transfer]) -> collections.Counter[tuple[str, int, float]]:
        """Kinds, numbers of devices and bytes of transfers, counted.

        Axes of equal size are not told apart.
        """
        mesh = self.plan.mesh
        return collections.Counter(
            (t.kind, 0 if t.kind == "permute" else lowering.ways([t.axes], mesh), t.bytes)
            for t in transfers
        )

    def in_parts(self, value: int) -> bool:
        """Does Shardy split a mesh axis of this value into parts?"""
        own = [row for row, root in zip(self.rows, self.roots, strict=True) if root == value]
        return any(
            ":" in axis
            for row in own
            for dims in (row.before, row.after, [row.axes])
            for d in dims
            for axis in d
        )

    def kept_for_nothing(self, value: int) -> bool:
        """Do we bring the value to a sharding that no use reads? Shardy never does so."""
        kept: Spec = self.kept[value]
        if kept == self.natural[value] or value in self.outputs:
            return False
        return all(self.used[u] != kept for u in self.uses[value])


def _axes(transfers: Sequence[Transfer], kind: str) -> set[str]:
    return {axis for t in transfers if t.kind == kind for axis in t.axes}


def _count(transfers: Sequence[Transfer]) -> int:
    return sum(t.kind == "all_to_all" for t in transfers)
