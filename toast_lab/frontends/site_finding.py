"""Finds the sites of a program in its user's source.

The function is traced again with a mark at each statement that binds or returns an array (see
``instrumented`` and ``site_marks``). Its program is compared op by op with that without marks, and
the operands of marks are the values of the site: those of the forward pass, one for each layer that
runs through the statement, and their cotangents.

Without a function (a StableHLO file) each source line has a site for every op that it makes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, cast

from toast_lab.errors import FrontendError, InvalidPlan
from toast_lab.frontends.instrumented import Statement, source_of_file, visited
from toast_lab.frontends.loading import with_function
from toast_lab.frontends.packages import FRAMEWORKS, STANDARD, package_of
from toast_lab.frontends.same_values import Matched, matched_values
from toast_lab.frontends.site_marks import Mark, mark, marks_in
from toast_lab.frontends.tracing import retrace
from toast_lab.ir import op_kinds
from toast_lab.ir.locations import frames
from toast_lab.ir.model import Function, Model
from toast_lab.ir.platform_names import PLATFORMS
from toast_lab.ir.program import Program
from toast_lab.ir.sites import Site, Sites

#: How the refusal of a site in an installed package begins.
IN_LIBRARY = "in a library"


def sites_of(
    program: Program,
    model: Model,
    *,
    in_packages: Collection[str] = (),
) -> Sites:
    """The sites of ``program``, which is one of the model's, for one of its platforms.

    User code that is not loaded in this process runs in a child process.

    Args:
        program: the program.
        model: where it comes from.
        in_packages: installed packages whose source may carry constraints as the user's own does.

    Raises:
        InvalidPlan: tracing the function gives another program.
        FrontendError, RunFailed, RunInterrupted: the function cannot be made or traced again, or
            not in time.
    """
    if model.function is None:
        return Sites(tuple(_sites_of_lines(program)), {})
    return with_function(
        _sites_of_function,
        model,
        program,
        in_packages,
        activity="finding the sites of {}",
    )


def _statement(site: Site) -> Statement:
    return Statement(**{field: getattr(site, field) for field in Statement._fields})


def _is_array(value: Any) -> bool:
    """Is it an array of the program that can be cut: not a number, a constant or a random key?"""
    import jax

    return (
        isinstance(value, jax.core.Tracer)
        and isinstance(value.aval, jax.core.ShapedArray)
        and bool(value.aval.shape)
        and not jax.dtypes.issubdtype(value.aval.dtype, jax.dtypes.extended)
    )


# -- finding sites ---------------------------------------------------------------------------------


class _Trace(NamedTuple):
    """A program with marks, and what tracing it showed of the statements."""

    program: Program
    statements: list[Statement]  #: by the numbers in marks
    #: (file, line) of the callers of each statement, innermost first
    callers: dict[Statement, tuple[tuple[str, int], ...]]
    in_kernels: dict[Statement, int]  #: statements within Pallas kernels, and their ranks


class _Holder:
    """What is known of the arrays that come by a statement."""

    def __init__(self) -> None:
        self.ranks: set[int] = set()
        self.values: set[int] = set()
        self.cotangents: set[int] = set()
        self.reason = ""

    def add(self, mark: Mark) -> None:
        self.ranks.add(mark.rank)
        if mark.batch_dims:
            self.reason = "inside vmap, which adds dims that a constraint there cannot name"

    @property
    def refusal(self) -> str:
        """Why no constraint can stand there, whatever encloses it."""
        if self.reason or len(self.ranks) == 1:
            return self.reason
        ranks = " and ".join(map(str, sorted(self.ranks)))
        return f"arrays of {ranks} dims come by, which no one spec fits"


def _sites_of_function(model: Model, program: Program, in_packages: Collection[str]) -> Sites:
    trace, same_value = _traced_again(program, cast(Function, model.function))
    holders: dict[Statement, _Holder] = {}
    for op, seen in marks_in(trace.program):
        holder = holders.setdefault(trace.statements[seen.number], _Holder())
        holder.add(seen)
        value = same_value.get(trace.program.operands(op)[0])
        if value is not None and not program.value_is_constant[value]:
            (holder.cotangents if seen.is_cotangent else holder.values).add(value)
    _add_those_by_hand(holders, trace)
    sites = [
        _site(statement, holder, in_packages)
        for statement, holder in holders.items()
        if holder.values or holder.reason
    ]
    # In program order; of a call and the name that is given to its result, the name first
    sites.sort(
        key=lambda site: (
            min(site.values, default=2**62),
            not site.name,
            site.file,
            site.line,
            site.element,
        )
    )
    sources = {file: source_of_file(file) for file in sorted({site.file for site in sites})}
    digests = {file: source.digest for file, source in sources.items() if source is not None}
    return Sites(tuple(_with_alternative(site, sites, trace) for site in sites), digests)


def _add_those_by_hand(holders: dict[Statement, _Holder], trace: _Trace) -> None:
    """Add the statements in shard_maps and kernels, whose values are no values of the program."""
    for shard_map in trace.program.shard_maps:
        for _, seen in marks_in(shard_map.body):
            holder = holders.setdefault(trace.statements[seen.number], _Holder())
            holder.add(seen)
            holder.reason = "inside shard_map, which is split by hand"
    for statement, rank in trace.in_kernels.items():
        holder = holders.setdefault(statement, _Holder())
        holder.ranks.add(rank)
        holder.reason = "inside a Pallas kernel, which runs on one device"


def _site(statement: Statement, holder: _Holder, in_packages: Collection[str]) -> Site:
    refusal, package = holder.refusal, package_of(statement.file)
    if not refusal and package and package not in in_packages:
        refusal = f"{IN_LIBRARY} ({package})"
    return Site(
        **statement._asdict(),
        rank=min(holder.ranks),
        values=tuple(sorted(holder.values)),
        cotangents=tuple(sorted(holder.cotangents)),
        refusal=refusal,
    )


def _with_alternative(site: Site, sites: Sequence[Site], trace: _Trace) -> Site:
    """The site; if it is refused, its refusal names the nearest enclosing site that is not."""
    if not site.refusal:
        return site
    for file, line in trace.callers.get(_statement(site), ()):
        for other in sites:
            if other.file == file and other.line <= line <= other.end_line and not other.refusal:
                return site._replace(
                    refusal=f"{site.refusal}; constrain {other.target} at {other.where}"
                )
    return site


# -- tracing again ---------------------------------------------------------------------------------


def _traced_again(program: Program, function: Function) -> tuple[_Trace, dict[int, int]]:
    """The function's program with marks, and for its values those of ``program`` that they are.

    Raises InvalidPlan if it is another program.
    """
    trace, model = _trace(program, function)
    best: tuple[_Trace, Matched] | None = None
    for platform in ("", *PLATFORMS):
        with contextlib.suppress(FrontendError):
            lowered = model.lowered_for(platform) if platform else model
            if platform and lowered is model:
                continue
            matched = matched_values(program, lowered.program)
            if best is None or matched.unmatched < best[1].unmatched:
                best = trace._replace(program=lowered.program), matched
            if not best[1].unmatched:
                break
    assert best is not None  # the first does not raise
    if best[1].unmatched > program.n_ops // 10:
        raise InvalidPlan(
            f"the function is another program than {program.name}: {best[1].difference}. Was it "
            "made with the same code, arguments and versions?"
        )
    return best[0], best[1].values


def _trace(program: Program, function: Function) -> tuple[_Trace, Model]:
    """Trace the function with marks."""
    numbers: dict[Statement, int] = {}
    callers: dict[Statement, tuple[tuple[str, int], ...]] = {}
    in_kernels: dict[Statement, int] = {}

    def visit(value: Any, statement: Statement) -> Any:
        if not _is_array(value):
            return value
        around = tuple(_callers())
        callers.setdefault(statement, around)
        number = numbers.setdefault(statement, len(numbers))
        if any(_PALLAS in file for file, _ in around):
            in_kernels[statement] = len(value.aval.shape)
            return value
        return mark(value, number)

    with visited(files_of(program), visit):
        model = retrace(function, function.call)
    return _Trace(model.program, list(numbers), callers, in_kernels), model


_PALLAS = os.path.join("jax", "_src", "pallas", "")


def _callers() -> Iterator[tuple[str, int]]:
    """(file, line) of the callers of the statement that is visited, innermost first."""
    frame = sys._getframe(4)  # this, the visit, the visitor, and the statement's own function
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]


def files_of(program: Program) -> list[str]:
    """The files of the program's source lines that may have sites."""
    files = {frame.file for location in program.locations for frame in frames(location)}
    return sorted(file for file in files if package_of(file) not in (STANDARD, *FRAMEWORKS))


# -- without a function ----------------------------------------------------------------------------


def _sites_of_lines(program: Program) -> list[Site]:
    """A site for the ops of one source line, kind and shape, in each pass."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for op in program.ops():
        results = program.results(op)
        if (
            op_kinds.is_control(program.kind[op])
            or len(results) != 1
            or not program.dims(results[0])
            or program.value_is_constant[results[0]]
        ):
            continue
        is_backward = "transpose" in program.name_stack[op]
        place = (program.where(op), program.kind[op], is_backward, program.dims(results[0]))
        groups.setdefault(place, []).append(results[0])
    sites = []
    for (where, kind, is_backward, dims), values in groups.items():
        file, _, line = where.rpartition(":")
        sites.append(
            Site(
                file=file,
                line=int(line) if line.isdigit() else 0,
                end_line=int(line) if line.isdigit() else 0,
                name=program.value_name[values[0]],
                function="",
                text=f"{kind} of a backward pass" if is_backward else kind,
                rank=len(dims),
                values=tuple(values),
                cotangents=(),
            )
        )
    return sites
