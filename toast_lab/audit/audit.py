"""``audit``: what a compiler makes of a program as its user shards it, and what to change.

    audit = tl.audit(step, params, batch, machine="tpu-v5e")
    print(audit)

The user's program is compiled as it is, with its own annotations, for a target that need not be
there. The same annotations are propagated, which gives a plan; the plan is priced, its collectives
are paired with the compiled ones, and changes of the annotations are tried in the same way. So each
finding has a source line, a reason, a cost, and the cheapest change that removes it.

Start reading at ``audit``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toast_lab import text
from toast_lab.audit import asked
from toast_lab.audit.conflict_sides import ConflictSides
from toast_lab.audit.detecting import Evidence, detect
from toast_lab.audit.findings import AuditRow, Finding, Kind
from toast_lab.audit.places_alike import PlacesAlike
from toast_lab.audit.remedies import with_remedies
from toast_lab.audit.trials import Outcome, Trials
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem, RunFailed
from toast_lab.files import PathLike
from toast_lab.ir.annotations import Annotation
from toast_lab.ir.model import Model
from toast_lab.machines.machine_model import Machine
from toast_lab.plan_verbs import Plan
from toast_lab.runtime._jax_private import LeftOpen
from toast_lab.runtime.compile import compile_written
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.diff import CompiledDiff, diff_compiled
from toast_lab.search import contract
from toast_lab.search.contract import Budget
from toast_lab.search.usual_plans import usual_plans
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import plan_of_actions
from toast_lab.text import JsonObject, bytes_text
from toast_lab.written.annotated import Edits, edited

#: Findings that ``str()`` writes out; the others are one line each.
SHOWN_FINDINGS = 5
WIDTH = 100  #: columns of a report
LEAST_CHANGE_WIDTH = 24  #: columns of a change in a table
#: Findings whose remedies ``confirm`` compiles.
CONFIRMED_FINDINGS = 3
AS_WRITTEN, DATA_PARALLEL, BEST_PLAN = "as written", "data parallel", "best plan found"


@dataclasses.dataclass(frozen=True, eq=False)
class Audit:
    """The findings on one program as it is sharded, and the figures beside which they stand.

    Examples:
        >>> import jax
        >>> import toast_lab as tl
        >>> mesh = jax.sharding.AbstractMesh((4,), ("data",))
        >>> rows = jax.NamedSharding(mesh, jax.P("data"))
        >>> x = jax.ShapeDtypeStruct((4096, 1024), "float32", sharding=rows)
        >>> audit = tl.audit(lambda x: jax.nn.relu(x), x, compile=False, search=False)
        >>> audit.findings
        ()
        >>> [row.name for row in audit.contenders]
        ['as written', 'data parallel']
    """

    model: Model
    problem: Problem
    findings: tuple[Finding, ...]  #: those that save most first
    plan: Plan  #: what the annotations mean as a plan
    cost: Cost  #: of ``plan``
    time_s: float  #: of a step as written, with the padding of uneven dims
    compiled: Compiled | None  #: None: priced alone
    diff: CompiledDiff | None  #: priced and compiled collectives, pair by pair
    contenders: tuple[AuditRow, ...]  #: as written, data parallel, the best plan found
    best: Plan | None  #: the best plan that a short search found; None: not searched
    notes: tuple[str, ...]  #: what could not be read or done, and why

    def over(self, share: float = 0.05, allowed: Sequence[str] = ()) -> list[Finding]:
        """Findings of at least this share of a step, without those that ``allowed`` names.

        Args:
            share: of the step, that a finding costs or its change saves. Rematerialisations count
                whatever they cost.
            allowed: kinds ("uneven-dim"), source lines or parts of a finding's title.
        """
        return [
            finding
            for finding in self.findings
            if (finding.kind == Kind.REMATERIALISATION or self.share(finding) >= share)
            and not any(_is_allowed(finding, entry) for entry in allowed)
        ]

    def share(self, finding: Finding) -> float:
        """The share of a step that a finding's remedy saves, or of the peak if it saves memory."""
        remedy = finding.remedy
        if remedy is None:
            return finding.time_s / self.time_s if self.time_s else 0.0
        memory = 0.0
        if remedy.saved_share >= -0.002 and self.cost.peak_bytes:
            memory = remedy.saved_bytes / self.cost.peak_bytes
        is_padded = finding.kind == Kind.UNEVEN_DIM and self.time_s
        padding = finding.time_s / self.time_s if is_padded else 0.0
        return max(remedy.saved_share, memory, padding)

    def to_json(self) -> JsonObject:
        """Plain data."""
        return {
            "model": self.model.name,
            "mesh": str(self.problem.mesh),
            "machine": self.problem.machine.name,
            "time_s": self.time_s,
            "peak_bytes": self.cost.peak_bytes,
            "memory_limit_bytes": self.cost.memory_limit_bytes,
            "fits": self.cost.fits,
            "compiled_for": self.compiled.topology if self.compiled is not None else None,
            "contenders": [contender._asdict() for contender in self.contenders],
            "findings": [
                {**finding.to_json(), "share": self.share(finding)} for finding in self.findings
            ],
            "collectives": (
                self.diff.tidy()
                if self.diff is not None
                else [row._asdict() for row in self.cost.collectives]
            ),
            "notes": list(self.notes),
        }

    def table(self) -> str:
        """All findings, one a line; long changes are cut off."""
        rows: list[tuple[str, ...]] = [
            (
                f"{number}",
                finding.kind,
                text.line_text(finding.where) if finding.where else "arguments",
                f"{finding.time_s * 1e3:.3f} ms",
                bytes_text(finding.bytes),
                f"{self.share(finding):.1%}",
            )
            for number, finding in enumerate(self.findings, 1)
        ]
        header = ("", "finding", "at", ">costs", ">bytes", ">saves")
        left = WIDTH - 2 - max(map(len, text.table(header, rows, len(rows)).splitlines()))
        changes = [
            "none that was tried"
            if finding.remedy is None
            else textwrap.shorten(
                finding.remedy.text, max(left, LEAST_CHANGE_WIDTH), placeholder=" ..."
            )
            for finding in self.findings
        ]
        rows = [(*row, change) for row, change in zip(rows, changes, strict=True)]
        return text.table((*header, "change"), rows, len(rows))

    def __repr__(self) -> str:
        return f"<Audit of {self.model.name}, {text.counted(len(self.findings), 'finding')}>"

    def _repr_html_(self) -> str:
        return text.as_html(self)

    def __str__(self) -> str:
        return self.text()

    def text(self, limit: int = SHOWN_FINDINGS) -> str:
        """The figures, and at most ``limit`` findings in full."""
        for_target = f", compiled for {self.compiled.topology}" if self.compiled else ""
        lines = [
            f"{self.model.name} on {self.problem.mesh}, priced for {self.problem.machine.name}"
            f"{for_target}",
            _contenders_text(self.contenders),
            "",
        ]
        if not self.findings:
            count = len(self.cost.collectives)
            needed = f"{text.counted(count, 'collective')}, all needed by the shardings"
            lines.append(
                f"Clean: {needed if count else 'no collectives'}, and no change tried saves "
                "anything."
            )
        for number, finding in enumerate(self.findings[:limit], 1):
            lines += [*_finding_lines(number, finding), ""]
        if len(self.findings) > limit:
            lines.append(
                f"... and {len(self.findings) - limit} more: print(audit.table()) lists all"
            )
        lines += [f"Note: {note}" for note in self.notes]
        return "\n".join(lines).rstrip()


def audit(
    fn: Callable[..., Any] | Model,
    *args: Any,
    mesh: Mesh | Mapping[str, int] | str | None = None,
    machine: str | Machine | None = None,
    topology: str | None = None,
    **options: Any,
) -> Audit:
    """Audit a function as it is sharded: findings by source line, with the cheapest changes.

    Args:
        fn: a function with shardings in it or around it: jitted with ``in_shardings``, with
            ``with_sharding_constraint``, flax's logical constraints, or with arguments that carry
            their sharding. Or a Model of one.
        args: its arguments, as for ``from_jax``. Their meshes may be ``AbstractMesh``es, so that no
            device has to be attached.
        mesh: the mesh that the shardings are on; taken from them by default.
        machine: the machine to price for; "tpu-v5e" by default, or the topology's.
        topology: what to compile for, as for ``compile``; by default a topology of the machine, or
            virtual CPU devices where its compiler is not installed.
        options: the further arguments of ``audit_model``.

    Raises:
        InvalidProblem: there are no shardings, or they are on several meshes or another one.
        FrontendError: as ``from_jax``.
        RunFailed: the compiler crashed, hung or refused the program.

    Examples:
        >>> import jax
        >>> import toast_lab as tl
        >>> mesh = jax.sharding.AbstractMesh((4,), ("data",))
        >>> def sharded(*spec):
        ...     return jax.NamedSharding(mesh, jax.P(*spec))
        >>> def layer(x, w):
        ...     h = jax.lax.with_sharding_constraint(x @ w, sharded())
        ...     return jax.nn.relu(h) @ w
        >>> x = jax.ShapeDtypeStruct((4096, 1024), "float32", sharding=sharded("data"))
        >>> w = jax.ShapeDtypeStruct((1024, 1024), "float32", sharding=sharded())
        >>> audit = tl.audit(layer, x, w, compile=False, search=False)
        >>> audit.findings[0].kind
        'replicated work'
        >>> audit.findings[0].remedy.removes
        True
    """
    if isinstance(fn, Model):
        model = fn
    else:
        from toast_lab.frontends import from_jax

        model = from_jax(fn, *args)
    return audit_model(model, mesh=mesh, machine=machine, topology=topology, **options)


@dataclasses.dataclass(frozen=True)
class AuditOptions:
    """How an audit is made."""

    compile: bool = True  #: compile the program; False: price what Shardy's propagation gives
    confirm: bool = False  #: compile the changes of the first findings, too
    search: bool = True  #: look for a better plan on the same mesh
    search_s: float = 10.0  #: seconds of that search
    trial_s: float = 60.0  #: seconds for trying changes
    time_limit_s: float = 600.0  #: of each compilation
    store: bool | PathLike = True  #: of compiled programs, as for ``compile``
    memory_limit_bytes: float | None = None  #: of a device; None: the machine's memory


def audit_model(
    model: Model,
    *,
    mesh: Mesh | Mapping[str, int] | str | None = None,
    machine: str | Machine | None = None,
    topology: str | None = None,
    on_progress: Callable[[str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
    **options: Any,
) -> Audit:
    """``audit`` of a model.

    Args:
        model: with annotations.
        mesh: as for ``audit``, as are machine and topology.
        machine: the machine to price for.
        topology: what to compile for.
        on_progress: receives each stage, as text.
        cancel: polled; True stops the audit and raises ``isolate.Cancelled``.
        options: the fields of ``AuditOptions``.
    """
    settings = _settings(options)
    auditor = _Auditor(model, settings, on_progress or (lambda stage: None), cancel)
    return auditor.run(mesh, machine, topology)


def _settings(options: Mapping[str, Any]) -> AuditOptions:
    known = [field.name for field in dataclasses.fields(AuditOptions)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InvalidProblem(
            f"audit has no option {', '.join(unknown)}; its options are {', '.join(known)}"
        )
    return AuditOptions(**options)


class _Auditor:
    """Makes one audit."""

    def __init__(
        self,
        model: Model,
        settings: AuditOptions,
        say: Callable[[str], None],
        cancel: Callable[[], bool] | None,
    ) -> None:
        self.model, self.settings, self.say, self.cancel = model, settings, say, cancel
        self.notes: list[str] = []

    def run(
        self,
        mesh: Mesh | Mapping[str, int] | str | None,
        machine: str | Machine | None,
        topology: str | None,
    ) -> Audit:
        settings = self.settings
        own_mesh = asked.checked_mesh(self.model, mesh)
        machine, topology, notes = asked.target_of(
            own_mesh, machine, topology, compiled=settings.compile
        )
        self.notes += [*notes, *_unread(self.model.annotations)]
        self.say("analysing")
        problem = Problem(
            analyse(self.model),
            own_mesh,
            machine,
            memory_limit_bytes=settings.memory_limit_bytes,
        )
        # As JAX lowers it for the machine's platform
        self.model = model = self.model.lowered_for(problem.machine.compiler)
        trials = Trials(problem, model.stablehlo)
        self.say("propagating the shardings")
        written = trials.as_written(time_limit_s=settings.trial_s, cancel=self.cancel)
        compiled = (
            self.compiled(written, topology, trials)
            if settings.compile and self.can_compile(topology)
            else None
        )
        diff = (
            diff_compiled(problem, written.meaning.plan, compiled)
            if compiled is not None and not compiled.refused
            else None
        )
        if compiled is not None and compiled.refused:
            self.notes.append(f"the compiler refuses the program as written: {compiled}")
        evidence = Evidence(
            problem, PlacesAlike(model.program), written, compiled=compiled, diff=diff
        )
        self.say("trying changes")
        findings = with_remedies(
            evidence,
            detect(evidence),
            trials,
            time_limit_s=settings.trial_s,
            cancel=self.cancel,
        )
        sides = ConflictSides(problem, written)
        findings = [
            dataclasses.replace(
                finding, conflict=sides.behind(_tensors(evidence, finding), finding.axes)
            )
            for finding in findings
        ]
        if settings.confirm and compiled is not None:
            findings = self.confirmed(evidence, findings, topology, trials)
        best, contenders = self.contenders(problem, written, compiled)
        return Audit(
            model=model,
            problem=problem,
            findings=tuple(findings),
            plan=Plan.of(written.meaning.plan),
            cost=written.cost,
            time_s=written.time_s,
            compiled=compiled,
            diff=diff,
            contenders=tuple(contenders),
            best=best,
            notes=tuple(self.notes),
        )

    def can_compile(self, topology: str) -> bool:
        """Is the program the one that JAX lowers for this platform? A note says if not."""
        platform = topology.partition(":")[0]
        if platform in self.model.platforms:
            return True
        self.notes.append(
            f"not compiled: JAX lowers this function differently for {platform.upper()}s, so "
            f"{topology} says nothing about it"
        )
        return False

    def compiled(self, outcome: Outcome, topology: str, trials: Trials) -> Compiled:
        """The user's program, edited as in ``outcome``, compiled."""
        self.say(f"compiling for {topology}")
        plan, edits = outcome.meaning.plan, outcome.edits
        return compile_written(
            self.model,
            plan,
            edited(trials.numbered_text, plan.program, plan.mesh, edits),
            topology,
            left_open=left_open(self.model, edits),
            time_limit_s=self.settings.time_limit_s,
            cancel=self.cancel,
            store=self.settings.store,
        )

    def confirmed(
        self, evidence: Evidence, findings: Sequence[Finding], topology: str, trials: Trials
    ) -> list[Finding]:
        """The findings, the first ones with what compiling their changes showed."""
        confirmed = list(findings)
        for number, finding in enumerate(findings[:CONFIRMED_FINDINGS]):
            remedy = finding.remedy
            outcome = trials.outcomes.get(remedy.edits) if remedy is not None else None
            if remedy is None or outcome is None:
                continue
            try:
                compiled = self.compiled(outcome, topology, trials)
            except RunFailed as error:
                sentence = f"it does not compile: {str(error)[:200]}"
            else:
                sentence = _confirmation(evidence, finding, compiled)
            confirmed[number] = dataclasses.replace(
                finding, remedy=dataclasses.replace(remedy, confirmed=sentence)
            )
        return confirmed

    def contenders(
        self, problem: Problem, written: Outcome, compiled: Compiled | None
    ) -> tuple[Plan | None, list[AuditRow]]:
        """(the best plan found, the rows of the comparison)."""
        rows = [_as_written(written, compiled)]
        with contextlib.suppress(InvalidPlan):
            actions = usual_plans(problem).get(DATA_PARALLEL)
            if actions is not None:
                plan = plan_of_actions(problem.space, actions)
                rows.append(_contender(DATA_PARALLEL, price(problem, plan)))
        if not self.settings.search:
            return None, rows
        self.say("searching for a better plan")
        started = time.monotonic()
        result = contract.search(
            problem,
            budget=Budget(seconds=self.settings.search_s),
            cancel=self.cancel,
            actions_within=0.0,
        )
        seconds = time.monotonic() - started
        rows.append(_contender(f"{BEST_PLAN} in {seconds:.0f} s", price(problem, result.plan)))
        return Plan.of(result.plan), rows


def left_open(model: Model, edits: Edits) -> LeftOpen:
    """Arguments and results of a model without a sharding, which the compiler may choose."""
    program = model.program
    given = {a.value for a in model.annotations if a.kind == "argument"}
    given |= {argument for argument, spec in edits.arguments if spec is not None}
    returned = {a.value for a in model.annotations if a.kind == "result"}
    numbers = {number for number, spec in edits.results if spec is not None}
    return LeftOpen(
        tuple(argument not in given for argument in range(program.n_arguments)),
        tuple(
            value not in returned and number not in numbers
            for number, value in enumerate(program.outputs.tolist())
        ),
    )


def _tensors(evidence: Evidence, finding: Finding) -> list[int]:
    program = evidence.roles.program
    around = [finding.op] if finding.op >= 0 else []
    return [
        *finding.values[:8],
        *(int(v) for op in around for v in (*program.operands(op), *program.results(op))),
    ]


def _unread(annotations: Sequence[Annotation]) -> list[str]:
    """A note for each annotation that no plan can express."""
    return [
        f"no plan can express {annotation}: it is compiled as it is and left out of the price"
        for annotation in annotations
        if annotation.trouble
    ]


def _confirmation(evidence: Evidence, finding: Finding, compiled: Compiled) -> str:
    """What compiling a change showed, as a sentence."""
    if compiled.refused:
        return f"the compiler refuses it: {compiled}"
    before = evidence.compiled
    parts = []
    if finding.kind == Kind.REMATERIALISATION:
        left = [remat for remat in compiled.rematerialised if remat.op in finding.ops]
        parts.append(
            "the rematerialisation stays" if left else "no rematerialisation is left there"
        )
    if before is not None and not before.refused:
        sent = [
            sum(c.bytes * c.times for c in program.collectives) for program in (before, compiled)
        ]
        parts.append(f"sends {bytes_text(sent[1])} instead of {bytes_text(sent[0])}")
        if before.time_s and compiled.time_s:
            now_ms, before_ms = compiled.time_s * 1e3, before.time_s * 1e3
            parts.append(f"a step takes {now_ms:.3f} ms instead of {before_ms:.3f} ms")
            is_gain = finding.remedy is not None and finding.remedy.saved_s > 0
            if is_gain and now_ms >= before_ms:
                parts.append("which does not confirm the gain")
    return f"compiled for {compiled.topology}: {', '.join(parts) or 'it compiles'}"


def _as_written(written: Outcome, compiled: Compiled | None) -> AuditRow:
    row = _contender(AS_WRITTEN, written.cost)._replace(time_s=written.time_s)
    if compiled is None or compiled.refused:
        return row
    return row._replace(
        compiled_s=compiled.time_s,
        compiled_peak_bytes=compiled.peak_bytes,
        compiled_sent_bytes=sum(compiled.bytes_by_kind().values()),
    )


def _contender(name: str, cost: Cost) -> AuditRow:
    return AuditRow(
        name=name,
        time_s=cost.time_s,
        peak_bytes=cost.peak_bytes,
        sent_bytes=cost.sent_bytes,
        fits=cost.fits,
    )


def _contenders_text(contenders: Sequence[AuditRow]) -> str:
    with_clock = any(row.compiled_s is not None for row in contenders)
    rows = [
        (
            f"  {row.name}",
            f"{row.time_s * 1e3:.3f} ms",
            *(
                [f"{row.compiled_s * 1e3:.3f} ms" if row.compiled_s is not None else "-"]
                if with_clock
                else []
            ),
            bytes_text(row.peak_bytes) + ("" if row.fits else ", does not fit"),
            bytes_text(row.sent_bytes),
        )
        for row in contenders
    ]
    clock = [">compiled"] if with_clock else []
    return text.table(("", ">step", *clock, ">peak", ">sent"), rows)


def _finding_lines(number: int, finding: Finding) -> list[str]:
    line = text.line_text(finding.where) + ": " if finding.where else ""
    lines = [
        f"{number}. {line}{finding.title}",
        *_field(
            "costs",
            f"{finding.time_s * 1e3:.3f} ms a step, {bytes_text(finding.bytes)} on a device",
        ),
        *_field("because", finding.why),
        *_field("sides", finding.conflict),
    ]
    remedy = finding.remedy
    if remedy is None:
        return [*lines, *_field("change", "none that was tried removes it")]
    return [
        *lines,
        *_field("change", str(remedy)),
        *(f"{'':11}{line}" for code in remedy.code for line in _code_lines(code)),
        *_field("proof", remedy.confirmed),
        *_field("also", f"removes {'; '.join(finding.also[:3])}" if finding.also else ""),
    ]


def _code_lines(code: str) -> list[str]:
    """A line of code; its comment stands before it if both do not fit into the width."""
    line, _, comment = code.partition("  # ")
    width = WIDTH - 11
    if len(code) <= width or not comment:
        return [code]
    return [textwrap.shorten(f"# {comment}", width, placeholder=" ..."), line]


def _field(name: str, sentence: str) -> list[str]:
    """A labelled sentence in lines of a fixed width; nothing if it is empty."""
    return textwrap.wrap(
        sentence,
        WIDTH,
        initial_indent=f"   {name:8}",
        subsequent_indent=" " * 11,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _is_allowed(finding: Finding, entry: str) -> bool:
    kind = finding.kind.replace(" ", "-")
    return entry == kind or entry in finding.where or entry in finding.title
