"""What Shardy's propagation makes of the user's annotations, edited in several ways.

Passes may abort their process, so this runs in child processes, which propagate many edits of one
program in turn. Start reading at ``propagate_all``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from toast_lab import _jaxlib, fork_server, isolate
from toast_lab.conflicts.analysis import Analysis
from toast_lab.ir import canonical
from toast_lab.ir.program import Program
from toast_lab.lowering.annotate import OP_NUMBER
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan, Spec, unsharded_plan
from toast_lab.written.annotated import Edits, edit, numbered_by

before_fork = fork_server.import_jax

_MOST_CHILDREN = 2  #: most processes that propagate at once
_LONG = 20_000  #: ops times edits from which a second process pays
#: Spec of each value after propagation; a value that propagation does not know is whole.
ValueSpecs = tuple[Spec, ...]


#: what children run, for ``isolate.warm_up``
IN_CHILD = "toast_lab.written.propagating:propagate_in_child"


class PropagationRequest(NamedTuple):
    """Input of the child process."""

    text: str  #: the canonical module, or from ``numbered``
    unsharded: ShardingPlan | None  #: to number the text by; None: it is numbered
    program: Program
    mesh: Mesh
    asked: Asked | None  #: None: it follows as a command


class Asked(NamedTuple):
    """What a child propagates."""

    edits: tuple[Edits, ...]
    seconds: float


class Tried(NamedTuple):
    """Progress: so many edits are propagated."""

    tried: int
    total: int


def propagate_all(
    numbered_text: str,
    program: Program,
    mesh: Mesh,
    edits: Sequence[Edits],
    *,
    time_limit_s: float = 60.0,
    on_event: Any = None,
    cancel: isolate.Cancel | None = None,
) -> list[ValueSpecs | None]:
    """Specs of all values under each of ``edits``, in order.

    None stands for edits that Shardy refuses, or for which no time was left; the first is always
    tried.

    Raises:
        RunFailed: propagation crashed or hung.
    """
    if not edits:
        return []

    def propagated(part: Sequence[Edits]) -> list[ValueSpecs | None]:
        request = PropagationRequest(
            numbered_text, None, program, mesh=mesh, asked=Asked(tuple(part), time_limit_s)
        )
        specs: list[ValueSpecs | None] = isolate.run_in_child(
            IN_CHILD,
            request,
            time_limit_s=_patience_s(time_limit_s),
            on_event=on_event,
            cancel=cancel,
            activity=_ACTIVITY,
        )
        return specs

    # Progress is that of one child
    is_long = program.n_ops * len(edits) >= _LONG and on_event is None
    n_children = min(len(edits), _MOST_CHILDREN, os.cpu_count() or 1) if is_long else 1
    outcomes: list[ValueSpecs | None] = [None] * len(edits)
    with ThreadPoolExecutor(n_children) as threads:
        parts = [edits[first::n_children] for first in range(n_children)]
        for first, specs in enumerate(threads.map(propagated, parts)):
            outcomes[first::n_children] = specs
    return outcomes


class ReadAhead:
    """A child that reads a program while nobody knows yet which edits it will propagate.

    It propagates once. A context manager; leaving it ends the child.
    """

    def __init__(self, text: str, analysis: Analysis, mesh: Mesh) -> None:
        """Start the child; ``text`` is the module that the analysed program was read from."""
        unsharded = unsharded_plan(analysis, mesh)
        request = PropagationRequest(text, unsharded, analysis.program, mesh=mesh, asked=None)
        self._worker = isolate.ChildWorker(IN_CHILD, request, activity=_ACTIVITY)

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop()

    def propagate_all(
        self, edits: Sequence[Edits], *, time_limit_s: float, cancel: isolate.Cancel | None = None
    ) -> list[ValueSpecs | None]:
        """``propagate_all`` of the program that was read. Raises what that does."""
        self._worker.command(Asked(tuple(edits), time_limit_s))
        specs: list[ValueSpecs | None] = self._worker.result(
            _patience_s(time_limit_s), cancel=cancel
        )
        return specs


_ACTIVITY = "propagating the shardings"


def _patience_s(time_limit_s: float) -> float:
    """Seconds after which a child that propagates is killed; reading takes time as well."""
    return 2 * time_limit_s + 30.0


def propagate_in_child(request: PropagationRequest) -> list[ValueSpecs | None]:
    """``propagate_all`` in this process."""
    text, started = request.text, time.monotonic()
    if request.unsharded is not None:
        text = numbered_by(request.unsharded, text)
    module = _jaxlib.parse_module(_jaxlib.make_context(), text)
    asked = request.asked
    if asked is None:
        asked, started = isolate.next_command(), time.monotonic()
    if asked is None:  # the parent is gone
        return []
    deadline = started + asked.seconds
    outcomes: list[ValueSpecs | None] = []
    for number, edits in enumerate(asked.edits):
        if number and time.monotonic() > deadline:
            outcomes.append(None)
            continue
        try:
            with module.context, _jaxlib.ir.Location.unknown(module.context):
                edited: Any = module.operation.clone()
            edit(edited, request.program, request.mesh, edits)
            _jaxlib.propagate(edited)
            outcomes.append(value_specs(canonical.main_function(edited), request.program))
        except _jaxlib.ir.MLIRError:
            outcomes.append(None)
        isolate.report(Tried(number + 1, len(asked.edits)))
    return outcomes


def value_specs(main: Any, program: Program) -> ValueSpecs:
    """Axes per dim of every value of a propagated, numbered module."""
    specs: list[Spec] = [((),) * len(program.dims(value)) for value in range(program.n_values)]
    for number, argument in enumerate(main.arguments):
        specs[number] = _jaxlib.dim_axes(
            _jaxlib.sharding_of(argument, main), len(program.dims(number))
        )
    for (op, position), spec in _jaxlib.numbered_results(main, OP_NUMBER).items():
        # One op of the module stands for several of the program if it passes values on
        several = len(program.results(op)) == 1
        values = program.results(op + position) if several else program.results(op)
        value = int(values[0 if several else position])
        if len(spec) == len(specs[value]):
            specs[value] = spec
    _follow_loops(program, specs)
    return tuple(specs)


def _follow_loops(program: Program, specs: list[Spec]) -> None:
    """What a loop's body starts with is sharded as the loop's result is."""
    result_of = {
        int(program.owner[op]): int(program.results(op)[0])
        for op in program.ops()
        if program.kind[op] == "while.result"
    }
    for enter, result in result_of.items():
        for value in program.results(enter):
            specs[value] = specs[result]
