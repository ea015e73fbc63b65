"""The constraints that a plan needs so that propagation arrives at all its other shardings.

``annotate`` can put a constraint after every op. That leaves nothing to decide, but XLA's
simplifications stop at each constraint: by libtpu's clock for TPU v5e, a U-Net constrained
everywhere takes 2.5 times as long as one with a single constraint, and a mixture of experts 1.35
times. So the program that is compiled and run has constraints only where the plan changes a
sharding, and where propagation would choose another sharding than the plan's. The latter are found
by running propagation: after each round, the values whose sharding differs from the plan get a
constraint, except those whose operands differ as well.

An op that reads a value in another sharding than it is kept in has a constraint on both sides. XLA
merges equal ops before it propagates: two concatenations of the same values, of which one read them
whole and the other cut, became a single one that was cut, and a step of a recurrent network took
1.5 times as long. Products are left out, since XLA fuses a product with the transpose after it.

A scatter of partial sums that are added to those of another op has a constraint too. XLA scatters
onto the other sum instead of adding, which leaves no single sum to make whole: the gradients of an
embedding that is both read and written with (tied weights) were sent twice, and a step of BERT took
1.18 times as long.

The passes run in a child process. Propagation is Shardy's; the paper has no such step. Start
reading at ``needed_constraints``.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from toast_lab import fork_server, isolate
from toast_lab.errors import RunFailed
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import CONVOLUTION, DOT, VIEW, Program
from toast_lab.lowering.annotate import Writer, specs_on_ops
from toast_lab.lowering.propagated import propagated
from toast_lab.sharding.plan import ShardingPlan, Spec

if TYPE_CHECKING:
    from toast_lab.ir.model import Model

before_fork = fork_server.import_jax

TIME_LIMIT_S = 120.0
#: Number of propagations after which all values that are still wrong are constrained at once.
_PATIENT_ROUNDS = 3
_REMEMBERED = 64  # most results to cache, by program, mesh and sharding
_results: collections.OrderedDict[tuple[str, str, int], frozenset[int]] = collections.OrderedDict()


class ConstraintsRequest(NamedTuple):
    """Input of the child process."""

    stablehlo: str
    plan: ShardingPlan


def needed_constraints(
    model: Model,
    plan: ShardingPlan,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    cancel: isolate.Cancel | None = None,
) -> frozenset[int] | None:
    """The values that ``annotate`` has to constrain so that propagation follows the plan.

    Args:
        model: the plan's model.
        plan: the plan.
        time_limit_s: limit in seconds for the child process.
        cancel: polled; True stops the child and raises ``isolate.Cancelled``.

    Gives indices of values; None, which stands for all values, if the passes crashed or took too
    long.

    Raises:
        InvalidPlan: the plan shards another program.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> len(tl.needed_constraints(model, plan))
        0
    """
    model = plan.own_model(model)
    key = (plan.program.digest(), str(plan.mesh), plan.sharding.key())
    if key not in _results:
        try:
            _results[key] = isolate.run_in_child(
                "toast_lab.lowering.needed_constraints:find",
                ConstraintsRequest(model.stablehlo, plan),
                time_limit_s=time_limit_s,
                cancel=cancel,
                activity=f"looking for the constraints that {model.name} needs",
            )
        except RunFailed:
            return None
        while len(_results) > _REMEMBERED:
            _results.popitem(last=False)
    return _results[key]


def find(request: ConstraintsRequest) -> frozenset[int]:
    """``needed_constraints`` in this process."""
    plan = request.plan
    on_op, kept = specs_on_ops(plan), plan.lowered.kept
    needed = {value for value, spec in enumerate(on_op) if spec != kept[value]}
    needed |= _results_of_changes(plan) | _scattered_sums(plan)
    rounds = 0
    while True:
        wrong = _wrong_values(request, on_op, needed)
        # A value with a wrong operand may come out right once the operand does.
        first_wrong = {
            value
            for value in wrong
            if not wrong.intersection(plan.program.operands(int(plan.program.value_op[value])))
        }
        added = (first_wrong if rounds < _PATIENT_ROUNDS else wrong) - needed
        if not added:
            return frozenset(needed)
        needed |= added
        rounds += 1


def _results_of_changes(plan: ShardingPlan) -> set[int]:
    """Results of ops, except products, that read a value in another sharding than it is kept in."""
    program, kept, used = plan.program, plan.lowered.kept, plan.lowered.used
    return {
        int(result)
        for op in range(program.n_arguments, program.n_ops)
        if program.op_class[op] not in (DOT, CONVOLUTION)
        for result in program.results(op)
        if not program.value_is_constant[result]
        and any(
            used[use] != kept[program.use_value[use]]
            for use in program.uses(op)
            if not program.value_is_constant[program.use_value[use]]
        )
    }


def _scattered_sums(plan: ShardingPlan) -> set[int]:
    """Partial sums of scatters that are added to partial sums of ops that are not scatters."""
    program, partial = plan.program, plan.lowered.partial
    scatters = set[int]()
    for op in range(program.n_arguments, program.n_ops):
        if program.kind[op] != "add":
            continue
        summed = [_origin(program, value) for value in program.operands(op)]
        is_scatter = [program.kind[program.value_op[value]] == "scatter" for value in summed]
        if is_scatter[0] != is_scatter[1] and partial[summed[0]] == partial[summed[1]] != 0:
            scatters.add(summed[is_scatter.index(True)])
    return scatters


def _origin(program: Program, value: int) -> int:
    """The value that ``value`` is computed from by views, casts and transposes of all elements."""
    while True:
        op = int(program.value_op[value])
        operands = program.operands(op)
        is_passed_on = op_kind(program.kind[op]).done_while_fetched or program.op_class[op] == VIEW
        if not is_passed_on or len(operands) != 1:
            return value
        if math.prod(program.dims(operands[0])) != math.prod(program.dims(value)):
            return value
        value = int(operands[0])


def _wrong_values(
    request: ConstraintsRequest, on_op: Sequence[Spec], constrained: set[int]
) -> set[int]:
    """Values that propagation, with these constraints, shards differently from the plan.

    Arguments and constants are left out: their shardings are given or free.
    """
    plan, wrong = request.plan, set[int]()
    program, used = plan.program, plan.lowered.used
    writer = Writer(
        plan, reuse=True, scattered=True, numbered=True, located=False, constrained=constrained
    )
    annotated = writer.write(request.stablehlo, locations=False)
    for (op, position, is_result), axes in propagated(annotated).items():
        tensors = program.results(op) if is_result else program.uses(op)
        if position < len(tensors):
            value = int(tensors[position] if is_result else program.use_value[tensors[position]])
            planned_spec = on_op[value] if is_result else used[tensors[position]]
            is_computed = program.value_op[value] >= program.n_arguments
            if axes != planned_spec and is_computed and not program.value_is_constant[value]:
                wrong.add(value)
    return wrong
