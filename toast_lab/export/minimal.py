"""The fewest sharding constraints with which the user's own code carries out the plan.

    constraints = plan.constraints(minimal=True)  # tries sets of places, in a child process
    print(constraints)                            # each with source line, value and PartitionSpec
    step = jax.jit(constraints.apply(train_step), in_shardings=..., out_shardings=...)

Arguments and results have the plan's shardings, and propagation derives most of the others. A
constraint belongs to a place in the source, so one covers all layers that run through that line.
``trial`` explains how sets of constraints are judged and searched; ``remaining`` lists the
differences from the plan that the result leaves.

Propagation is Shardy's; the paper has no such step. Start reading at ``minimal_constraints``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toast_lab import isolate
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.export import constrained, places, trial
from toast_lab.export.constrained import EquationPlace, EquationSelection, PinRule
from toast_lab.export.places import Equation, SourceSpan
from toast_lab.ir import kernel_rules
from toast_lab.lowering.annotate import refuse_kernels_in_code, specs_on_ops
from toast_lab.lowering.specs import partition_text, spec_entries
from toast_lab.runtime import devices as dev
from toast_lab.sharding import steps
from toast_lab.sharding.plan import ShardingPlan, Spec, model_of
from toast_lab.text import counted, line_text

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.ir.model import Model

PROOFS = ("compiled", "propagated")


class PinTarget(NamedTuple):
    """An operand or a result of the equations at one place."""

    place: EquationPlace
    side: str  #: "result" or "operand"
    number: int
    which: EquationSelection | None  #: which equations of the place; None: all


class Pinned(NamedTuple):
    """One constraint: on the result of an expression, or on a value as some expressions read it."""

    targets: tuple[PinTarget, ...]  #: one result, or one or more operands
    specs: tuple[Spec, ...]  #: mesh axes per dim; a result takes several specs in turn
    values: tuple[str, ...]  #: names of the values, one for each layer that it covers
    where: str  #: "model.py:31"; the first line, if several read the value
    name_stack: str  #: of its first equation
    #: per target, the source ranges of its first equation
    frames: tuple[tuple[SourceSpan, ...], ...]

    @property
    def backward(self) -> bool:
        """Are all of its targets in the backward pass of a derivative?"""
        return all(target.place.backward for target in self.targets)

    def __str__(self) -> str:
        alike_text = f" and {len(self.values) - 1} alike" if len(self.values) > 1 else ""
        phase = " (backward)" if self.backward else ""
        first_target = self.targets[0]
        reader = first_target.place.primitive
        if first_target.side == "operand":
            kinds = dict.fromkeys(target.place.primitive for target in self.targets)
            lines_beside_first = {
                target.place.source.partition(" < ")[0] for target in self.targets
            } - {self.where}
            other_lines = (
                f" (and at {', '.join(sorted(lines_beside_first))})" if lines_beside_first else ""
            )
            reader = f"read by {', '.join(kinds)}{other_lines},"
        specs = " then ".join(partition_text(spec) for spec in self.specs)
        return f"{self.where}{phase}: {reader} {self.values[0]}{alike_text}: {specs}"


@dataclasses.dataclass(frozen=True, eq=False)
class MinimalConstraints(Sequence[Pinned]):
    """The constraints of a search, and how closely they reproduce the plan."""

    plan: ShardingPlan
    rows: tuple[Pinned, ...]
    proof: str  #: "compiled" or "propagated": the judge that agreed
    outcome: trial.TrialResult
    #: None: the program came without its function, so ``apply`` is not possible
    source: places.Source | None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[Pinned]:
        return iter(self.rows)

    @property
    def exact(self) -> bool:
        """Does the judge find no difference from the plan?"""
        return not self.remaining

    @property
    def remaining(self) -> list[str]:
        """The differences from the plan that these constraints leave, one sentence each."""
        outcome = self.outcome
        if outcome.compiled is None:
            program = self.plan.program
            return [
                f"{program.kind[op]} ({line_text(program.where(op))}): propagation gives "
                f"{'result' if result else 'operand'} {i} another sharding"
                for op, i, result in outcome.wrong
            ]
        return remaining(*outcome.compiled)

    @property
    def remaining_bytes(self) -> float:
        """Bytes of collectives that only the plan or only the program with these constraints has.

        Without compiling it is 0 if propagation agrees with the plan everywhere, else NaN.
        """
        compiled = self.outcome.compiled
        return self._uncompiled if compiled is None else trial.difference_bytes(*compiled)

    @property
    def _uncompiled(self) -> float:
        """The difference if nothing was compiled: 0 if propagation is right, else NaN (unknown)."""
        return float("nan") if self.outcome.wrong else 0.0

    def remaining_time_s(self, problem: Problem) -> float:
        """Predicted seconds of the compiled collectives beyond those of the plan.

        Without compiling it is 0 if propagation agrees with the plan everywhere, else NaN.
        """
        from toast_lab.export.pricing import collectives_time_s

        if self.outcome.compiled is None:
            return self._uncompiled
        target, reached = self.outcome.compiled
        return collectives_time_s(reached, problem) - collectives_time_s(target, problem)

    @property
    def rules(self) -> tuple[PinRule, ...]:
        """The constraints as ``constrained.constrain`` takes them."""
        merged: dict[
            tuple[EquationPlace, EquationSelection | None], tuple[dict[int, Any], dict[int, Any]]
        ] = {}
        for row in self.rows:
            entries = tuple(map(spec_entries, row.specs))
            for place, side, number, which in row.targets:
                operands, results = merged.setdefault((place, which), ({}, {}))
                if side == "operand":
                    operands[number] = entries[0]
                else:
                    results[number] = entries
        return tuple(
            PinRule(place, operands, results, which)
            for (place, which), (operands, results) in merged.items()
        )

    def apply(self, fn: Callable[..., Any], mesh: Any = None) -> Callable[..., Any]:
        """``fn`` with these constraints inserted, for the user's own ``jax.jit``.

        Raises:
            InvalidPlan: there are too few devices for the mesh, or the program came without its
                function.
        """
        from toast_lab.apply.jit import jax_mesh

        if self.source is None:
            raise InvalidPlan(
                "these constraints are for a program that came without its function, so they "
                "cannot be inserted into one; use tl.annotate"
            )
        return constrained.constrain(fn, self.rules, jax_mesh(self.plan, mesh))

    def __str__(self) -> str:
        value_count = sum(len(row.values) for row in self.rows)
        head = (
            f"{counted(len(self.rows), 'constraint')} for {counted(value_count, 'value')} of "
            f"{self.plan.program.name} on {self.plan.mesh}"
        )
        if not self.rows and self.exact:
            head = (
                f"no constraint is needed inside {self.plan.program.name} on {self.plan.mesh}: the "
                "shardings of its arguments are enough"
            )
        if self.remaining:
            agreement = f"remaining differences: {'; '.join(self.remaining[:10])}"
        elif self.proof == "compiled":
            agreement = "the compiler makes the same collectives"
        else:
            agreement = "propagation gives the plan"
        time_note = (
            "" if self.outcome.complete else "; time ran out before every constraint was tried"
        )
        return "\n".join([f"{head}; {agreement}{time_note}", *(f"  {row}" for row in self.rows)])


def minimal_constraints(
    plan: ShardingPlan,
    model: Model | None = None,
    *,
    proof: str = "compiled",
    seconds: float = 300.0,
    on_event: isolate.Listener | None = None,
    cancel: isolate.Cancel | None = None,
) -> MinimalConstraints:
    """Find the fewest constraints that reproduce ``plan`` under plain ``jax.jit``.

    Args:
        plan: of a model.
        model: the plan's model; by default that of its analysis.
        proof: "compiled": compile each set for virtual CPU devices and compare collectives, work
            and memory with those of the whole plan; "propagated": let Shardy's propagation alone
            judge, which is quicker and needs more constraints. CPUs cannot compile a program that
            JAX lowered for another platform alone, so propagation judges that one.
        seconds: time limit, after which the smallest set so far is returned.
        on_event: receives ``trial.TrialProgress``; without it a line on stderr announces the search
            and its time limit.
        cancel: polled; True ends the search with ``isolate.Cancelled``.

    Raises:
        InvalidPlan: the plan has no model, ``model`` is another program than the plan's, or the
            plan cuts a hand-written kernel, which the user's code calls whole.
        RunFailed: the compiler or a pass crashed.
    """
    if proof not in PROOFS:
        raise InvalidProblem(f"proof {proof!r} is not one of {', '.join(PROOFS)}")
    model = model_of(plan, model)
    refuse_kernels_in_code(model.stablehlo, plan)
    # No compiler knows the calls that stand for wrapped kernels
    if "cpu" not in model.platforms or kernel_rules.WRAPPED in model.stablehlo:
        proof = "propagated"
    source = places.source_of(plan.program, model)
    rows = candidates(plan, source.equations if source else places.ops_as_equations(plan.program))
    units = tuple(unit for _, unit in rows)
    request = trial.TrialRequest(
        model.stablehlo, plan, units=units, compiled=proof == "compiled", seconds=seconds
    )
    if on_event is None and sys.stderr is not None:
        method = "compiling for" if proof == "compiled" else "propagation over"
        print(
            f"looking for the fewest constraints of {model.name} by {method} "
            f"{plan.mesh.n_devices} virtual devices, {seconds:.0f} s at most ...",
            file=sys.stderr,
            flush=True,
        )
    outcome: trial.TrialResult = isolate.run_in_child(
        "toast_lab.export.trial:search",
        request,
        env=dev.environment(dev.Devices("cpu", plan.mesh.n_devices)),
        time_limit_s=seconds + 600.0,
        on_event=on_event,
        cancel=cancel,
        activity=f"looking for the constraints of {model.name}",
    )
    chosen = tuple(rows[i][0] for i in outcome.chosen)
    return MinimalConstraints(plan, chosen, proof=proof, outcome=outcome, source=source)


def candidates(
    plan: ShardingPlan, equations: Sequence[Equation]
) -> list[tuple[Pinned, trial.Unit]]:
    """Every possible constraint with its trial unit; equal ones of several layers are merged.

    If all readers of a value want the same sharding, the constraint on the value ends with it;
    otherwise readers that want the same sharding share a constraint.
    """
    program = plan.program
    kept, used, natural = plan.lowered.kept, plan.lowered.used, plan.lowered.natural
    first_specs = specs_on_ops(plan)
    read_specs: dict[int, set[Spec]] = {}
    # A shard_map brings its operands to its specs without being told.
    given = steps.tables(program).use_given != steps.OPEN
    for use in np.flatnonzero(~given).tolist():
        read_specs.setdefault(int(program.use_value[use]), set()).add(used[use])
    outputs = set(program.outputs.tolist())
    source = {
        int(value): (equation.place, i)
        for equation in equations
        for i, value in enumerate(equation.results)
        if value >= 0
    }
    groups: dict[Any, list[tuple[Equation, PinTarget, int, tuple[int, ...]]]] = {}
    for equation in equations:
        for i, value in enumerate(equation.results):
            if value < 0 or not len(program.dims(value)):
                continue
            specs = [first_specs[value], kept[value]]
            if value not in outputs and len(read_specs.get(value, ())) == 1:
                specs += read_specs[value]
            specs = [spec for spec, _ in itertools.groupby(specs)]
            target = PinTarget(equation.place, "result", i, None)
            groups.setdefault(("result", equation.place, i, tuple(specs)), []).append(
                (equation, target, value, ())
            )
        for i, uses in enumerate(equation.uses):
            if not uses or given[uses[-1]]:
                continue
            value = int(program.use_value[uses[0]])
            # The last of an equation's ops does the work; a gather first checks its indices.
            spec = used[uses[-1]]
            settled_at_result = (
                value in source and value not in outputs and len(read_specs[value]) == 1
            )
            if spec == kept[value] or settled_at_result:
                continue
            origin = source.get(value) or family(program.value_name[value])
            target = PinTarget(equation.place, "operand", i, None)
            groups.setdefault(("operand", origin, (spec,)), []).append(
                (equation, target, value, uses)
            )
    return [
        _row(key, members, program=program, kept=kept, natural=natural, used=used)
        for key, members in groups.items()
    ]


def _row(
    key: Any, members: list[Any], program: Any, kept: Any, natural: Any, used: Any
) -> tuple[Pinned, trial.Unit]:
    """A group of equal places as a constraint, and as the unit that ``trial`` tries."""
    side, specs, first_equation = key[0], key[-1], members[0][0]
    by_target: dict[PinTarget, list[Equation]] = {}
    for equation, target, _, _ in members:
        by_target.setdefault(target, []).append(equation)
    targets = tuple(
        target._replace(which=_which(equations)) for target, equations in by_target.items()
    )
    frames = tuple(equations[0].frames for equations in by_target.values())
    values = tuple(dict.fromkeys(value for _, _, value, _ in members))
    pinned = Pinned(
        targets=targets,
        specs=specs,
        values=tuple(program.value_name[value] for value in values),
        where=first_equation.where,
        name_stack=first_equation.name_stack,
        frames=frames,
    )
    if side == "operand":
        uses = {use: specs[0] for _, _, _, member_uses in members for use in member_uses}
        pins_others = any(used[use] != specs[0] for use in uses)
        cost = 1.0 + 2.0 * pinned.backward
        return pinned, trial.Unit(
            {}, uses, reshards=True, pins_other_readers=pins_others, cost=cost
        )
    reshards = len(specs) > 1 or any(kept[value] != natural[value] for value in values)
    cost = 2.0 * pinned.backward + 0.5 * (not reshards)
    results = dict.fromkeys(values, specs)
    return pinned, trial.Unit(results, {}, reshards=reshards, pins_other_readers=False, cost=cost)


def _which(equations: Sequence[Equation]) -> EquationSelection | None:
    """Select these equations among those of their place, for any layer count if possible."""
    if len(equations) == equations[0].place_count:
        return None
    passes = {equation.in_pass: equation.pass_count for equation in equations}
    if sum(passes.values()) == len(equations):
        return EquationSelection(frozenset(passes), True)
    return EquationSelection(frozenset(equation.number for equation in equations), False)


def family(path: str) -> str:
    """The path of a layer's value as one for every layer: ``params['layers'][*]['wq']``."""
    return re.sub(r"\d+", "*", path)


def remaining(target: trial.Signature, reached: trial.Signature) -> list[str]:
    """The differences between two compiled programs, one sentence each."""
    differences = []
    for key in sorted({*target.collectives, *reached.collectives}, key=str):
        planned, actual = (signature.collectives.get(key, 0.0) for signature in (target, reached))
        if planned != actual:
            kind, axes, size = key
            axes_text = "unknown axes" if axes is None else ", ".join(axes)
            differences.append(
                f"{kind} over {axes_text} of {size} bytes: {planned:g} in the plan, "
                f"{actual:g} with the constraints"
            )
    if reached.flops > trial.FLOPS_TOLERANCE * target.flops:
        differences.append(
            f"{reached.flops:.4g} floating point operations a device, "
            f"{target.flops:.4g} in the plan"
        )
    if reached.peak_bytes > trial.PEAK_TOLERANCE * target.peak_bytes:
        differences.append(
            f"{reached.peak_bytes} bytes at the peak, {target.peak_bytes} in the plan"
        )
    return differences
