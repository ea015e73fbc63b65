"""The fewest sharding constraints with which the user's own code becomes the plan.

    found = plan.constraints(minimal=True)      # tries sets of places, in a child process
    print(found)                                # each with source line, value and PartitionSpec
    step = jax.jit(found.apply(train_step), in_shardings=..., out_shardings=...)

Arguments and results carry the plan's shardings; propagation finds most of the rest by itself.  A
constraint stands at a place of the source, so one covers all layers that run through that line.
How a set is judged and searched is told in ``trial``; what remains different in the end is said in
``remaining``, never hidden.

Propagation is Shardy's; the paper has nothing of the kind.  Start reading at
``minimal_constraints``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from toast_lab import isolate
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.export import constrained, places, trial
from toast_lab.export.constrained import Place, Rule, Which
from toast_lab.export.places import Equation
from toast_lab.lowering.annotate import made_specs
from toast_lab.lowering.specs import partition_text, spec_entries
from toast_lab.runtime import devices as dev
from toast_lab.sharding.plan import ShardingPlan, Spec, model_of
from toast_lab.text import line_text

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.ir.model import Model

PROOFS = ("compiled", "propagated")


class Target(NamedTuple):
    """An operand or a result of the equations at one place."""

    place: Place
    side: str  #: "result" or "operand"
    number: int
    which: Which | None  #: which equations of the place; None: all


class Pinned(NamedTuple):
    """One constraint: on a value behind its expression, or on how some expressions read a value."""

    targets: tuple[Target, ...]  #: one result, or one or more operands
    specs: tuple[Spec, ...]  #: mesh axes per dim; a result is brought to one after the other
    values: tuple[str, ...]  #: names of the values, one for each layer that it covers
    where: str  #: "model.py:31"; where a value is read from several lines, the first
    name_stack: str  #: of the first of them
    #: per target: file, line, column, end line, column
    frames: tuple[tuple[tuple[str, int, int, int, int], ...], ...]

    @property
    def backward(self) -> bool:
        """Is it in the backward pass of a derivative alone?"""
        return all(t.place.backward for t in self.targets)

    def __str__(self) -> str:
        more = f" and {len(self.values) - 1} alike" if len(self.values) > 1 else ""
        phase = " (backward)" if self.backward else ""
        first = self.targets[0]
        what = first.place.primitive
        if first.side == "operand":
            kinds = dict.fromkeys(t.place.primitive for t in self.targets)
            lines = {t.place.source.partition(" < ")[0] for t in self.targets} - {self.where}
            also = f" (and at {', '.join(sorted(lines))})" if lines else ""
            what = f"read by {', '.join(kinds)}{also},"
        specs = " then ".join(partition_text(s) for s in self.specs)
        return f"{self.where}{phase}: {what} {self.values[0]}{more}: {specs}"


@dataclasses.dataclass(frozen=True, eq=False)
class MinimalConstraints(Sequence[Pinned]):
    """The constraints found, and how far they reproduce the plan."""

    plan: ShardingPlan
    rows: tuple[Pinned, ...]
    proof: str  #: "compiled" or "propagated": the judge that agreed
    found: trial.Found
    #: None: made for a program without its function, so ``apply`` cannot be used
    source: places.Source | None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        return self.rows[i]

    def __iter__(self) -> Iterator[Pinned]:
        return iter(self.rows)

    @property
    def exact(self) -> bool:
        """Does the judge see no difference to the plan?"""
        return not self.remaining

    @property
    def remaining(self) -> list[str]:
        """What differs from the plan with these constraints, a sentence each."""
        differences = self.found
        if differences.compiled is None:
            program = self.plan.program
            return [
                f"{program.kind[op]} ({line_text(program.where(op))}): propagation gives "
                f"{'result' if result else 'operand'} {i} another sharding"
                for op, i, result in differences.wrong
            ]
        return remaining(*differences.compiled)

    @property
    def remaining_bytes(self) -> float:
        """Bytes of collectives that one of the two programs has and the other has not.

        They are NaN if nothing was compiled.
        """
        found = self.found
        if found.compiled is None:
            return 0.0 if not found.wrong else float("nan")
        return trial.difference_bytes(*found.compiled)

    def remaining_time_s(self, problem: Problem) -> float:
        """Predicted seconds of the compiled collectives beyond those of the plan.

        They are NaN if nothing was compiled.
        """
        from toast_lab.export.pricing import collectives_time_s

        found = self.found
        if found.compiled is None:
            return 0.0 if not found.wrong else float("nan")
        target, reached = found.compiled
        return collectives_time_s(reached, problem) - collectives_time_s(target, problem)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """As ``constrained.constrain`` takes them."""
        merged: dict[tuple[Place, Which | None], tuple[dict[int, Any], dict[int, Any]]] = {}
        for row in self.rows:
            entries = tuple(map(spec_entries, row.specs))
            for place, side, number, some in row.targets:
                operands, results = merged.setdefault((place, some), ({}, {}))
                if side == "operand":
                    operands[number] = entries[0]
                else:
                    results[number] = entries
        return tuple(
            Rule(p, operands, results, some) for (p, some), (operands, results) in merged.items()
        )

    def apply(self, fn: Callable[..., Any], mesh: Any = None) -> Callable[..., Any]:
        """``fn`` with these constraints in it, for the user's own ``jax.jit``.

        Raises:
            InvalidPlan: too few devices for the mesh, or the constraints are not for a function.
        """
        from toast_lab.apply.jit import jax_mesh

        if self.source is None:
            raise InvalidPlan(
                "these constraints were found for a program without its function; see annotate"
            )
        return constrained.constrain(fn, self.rules, jax_mesh(self.plan, mesh))

    def __str__(self) -> str:
        spread = sum(len(r.values) for r in self.rows)
        head = (
            f"{counted(len(self.rows), 'constraint')} for {counted(spread, 'value')} of "
            f"{self.plan.program.name} on "
            f"{self.plan.mesh}"
        )
        how = (
            "the compiler makes the same collectives"
            if self.proof == "compiled"
            else ("propagation gives the plan")
        )
        left = self.remaining
        state = how if not left else f"what remains different: {'; '.join(left[:10])}"
        rest = "" if self.found.complete else "; time ran out before every constraint was tried"
        return "\n".join([f"{head}; {state}{rest}", *(f"  {row}" for row in self.rows)])


def minimal_constraints(
    plan: ShardingPlan,
    model: Model | None = None,
    *,
    proof: str = "compiled",
    seconds: float = 300.0,
    on_event: Callable[[Any], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> MinimalConstraints:
    """Find the fewest constraints that reproduce ``plan`` under plain ``jax.jit``.

    Args:
        plan: of a model.
        model: the model, if it is not the one last analysed of this program.
        proof: "compiled": compile each set for virtual CPU devices and compare collectives, work
            and memory with those of the whole plan; "propagated": let Shardy's propagation alone be
            the judge, which is quicker and asks for more constraints.
        seconds: after which the smallest set so far is given.
        on_event: receives ``trial.Progress``.
        cancel: polled; True ends the search with ``isolate.Cancelled``.

    Raises:
        InvalidPlan: the model is not at hand, or another one.
        RunFailed: the compiler or a pass crashed.
    """
    if proof not in PROOFS:
        raise InvalidProblem(f"proof {proof!r} is none of {', '.join(PROOFS)}")
    model = model_of(plan, model)
    source = places.source_of(plan.program, model)
    rows = candidates(plan, source.equations if source else places.ops_as_equations(plan.program))
    units = tuple(unit for _, unit in rows)
    request = trial.Request(model.stablehlo, plan, units, proof == "compiled", seconds)
    found: trial.Found = isolate.run_in_child(
        "toast_lab.export.trial:search",
        request,
        env=dev.environment(dev.Devices("cpu", plan.mesh.n_devices)),
        time_limit_s=seconds + 600.0,
        on_event=on_event,
        cancel=cancel,
        what=f"looking for the constraints of {model.name}",
    )
    chosen = tuple(rows[i][0] for i in found.chosen)
    return MinimalConstraints(plan, chosen, proof, found, source)


def candidates(
    plan: ShardingPlan, equations: Sequence[Equation]
) -> list[tuple[Pinned, trial.Unit]]:
    """Every constraint that could be set, alike ones of several layers together.

    A value that all its readers want in one sharding has that as its last; else those who want the
    same are one.
    """
    program = plan.program
    kept, used, natural = plan.lowered.kept, plan.lowered.used, plan.lowered.natural
    made = made_specs(plan)
    wanted: dict[int, set[Spec]] = {}
    for use, value in enumerate(map(int, program.use_value)):
        wanted.setdefault(value, set()).add(used[use])
    outputs = {int(v) for v in program.outputs}
    source = {int(v): (e.place, i) for e in equations for i, v in enumerate(e.results) if v >= 0}
    groups: dict[Any, list[tuple[Equation, Target, int, tuple[int, ...]]]] = {}
    for e in equations:
        for i, value in enumerate(e.results):
            if value < 0 or not len(program.dims(value)):
                continue
            specs = [made[value], kept[value]]
            if value not in outputs and len(wanted.get(value, ())) == 1:
                specs += wanted[value]
            specs = [s for j, s in enumerate(specs) if not j or s != specs[j - 1]]
            target = Target(e.place, "result", i, None)
            groups.setdefault(("result", e.place, i, tuple(specs)), []).append(
                (e, target, value, ())
            )
        for i, uses in enumerate(e.uses):
            if not uses:
                continue
            value = int(program.use_value[uses[0]])
            # Of several ops that an equation becomes the last does the work; a gather first looks
            # which indices fit.
            spec = used[uses[-1]]
            alone = value in source and value not in outputs and len(wanted[value]) == 1
            if spec == kept[value] or alone:
                continue
            origin = source.get(value) or _family(program.value_name[value])
            target = Target(e.place, "operand", i, None)
            groups.setdefault(("operand", origin, (spec,)), []).append((e, target, value, uses))
    return [_row(key, members, program, kept, natural, used) for key, members in groups.items()]


def _row(
    key: Any, members: list[Any], program: Any, kept: Any, natural: Any, used: Any
) -> tuple[Pinned, trial.Unit]:
    """One group of alike places as a constraint and as what is tried."""
    side, specs, first = key[0], key[-1], members[0][0]
    at: dict[Target, list[Equation]] = {}
    for e, target, _, _ in members:
        at.setdefault(target, []).append(e)
    targets = tuple(t._replace(which=_which(some)) for t, some in at.items())
    frames = tuple(some[0].frames for some in at.values())
    values = tuple(dict.fromkeys(v for _, _, v, _ in members))
    names = tuple(program.value_name[v] for v in values)
    pinned = Pinned(targets, specs, names, first.where, first.name_stack, frames)
    if side == "operand":
        uses = {u: specs[0] for _, _, _, some in members for u in some}
        blunt = any(used[u] != specs[0] for u in uses)
        return pinned, trial.Unit({}, uses, True, blunt, 1.0 + 2.0 * pinned.backward)
    reshards = len(specs) > 1 or any(kept[v] != natural[v] for v in values)
    cost = 2.0 * pinned.backward + 0.5 * (not reshards)
    return pinned, trial.Unit(dict.fromkeys(values, specs), {}, reshards, False, cost)


def _which(some: Sequence[Equation]) -> Which | None:
    """How to tell these equations of one place from the others.

    If it can be said in words that hold for more layers, it is.
    """
    if len(some) == some[0].of:
        return None
    passes = {e.in_pass: e.of_pass for e in some}
    if sum(passes.values()) == len(some):
        return Which(frozenset(passes), True)
    return Which(frozenset(e.number for e in some), False)


def _family(path: str) -> str:
    """``params['layers'][3]['wq']`` as that of every layer."""
    return re.sub(r"\d+", "*", path)


def remaining(target: trial.Signature, reached: trial.Signature) -> list[str]:
    """How two compiled programs differ."""
    differences = []
    for key in sorted({*target.collectives, *reached.collectives}, key=str):
        planned, now = target.collectives.get(key, 0.0), reached.collectives.get(key, 0.0)
        if planned != now:
            kind, axes, size = key
            over = "unknown axes" if axes is None else ", ".join(axes)
            differences.append(
                f"{kind} over {over} of {size} bytes: {planned:g} in the plan, {now:g} with the "
                "constraints"
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


def counted(number: int, noun: str) -> str:
    """``1 constraint``, ``2 constraints``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
