"""The output of a frontend's tracing, and the ``Model`` that is read from it."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.frontends import stages
from toast_lab.frontends.logical_names import LogicalNames
from toast_lab.ir import read
from toast_lab.ir.annotations import Annotation
from toast_lab.ir.call_form import CallForm
from toast_lab.ir.kernel_rules import KernelRule, register
from toast_lab.ir.model import DimNames, Function, Model
from toast_lab.ir.platforms import ALL_PLATFORMS, LoweredProgram, Lowerings
from toast_lab.ir.program import Program
from toast_lab.ir.program_notes import program_notes
from toast_lab.ir.random_keys import Keys
from toast_lab.text import counted


class Placement(NamedTuple):
    """The sharding that an argument carries: jitted functions without ``in_shardings`` take it."""

    mesh: tuple[tuple[str, int], ...]  #: axes and their sizes
    spec: tuple[tuple[str, ...], ...]  #: mesh axes per dim


class Traced(NamedTuple):
    """StableHLO from a frontend, and the facts that its text alone does not contain."""

    text: str
    paths: Sequence[str]  #: of the arguments, in order
    outputs: Sequence[str]  #: paths of the results
    donated: Sequence[bool]
    trees: Any  #: as in Model
    notes: tuple[str, ...]
    function: Function | None = None
    call_form: CallForm | None = None  #: as in Model
    dim_names: LogicalNames | None = None  #: that boxes around the arguments carry
    keys: Keys | None = None  #: which values are typed random keys; None if none are
    on_host: Sequence[bool] | None = None  #: whether each argument is in host memory
    platforms: frozenset[str] = ALL_PLATFORMS  #: as in Model
    #: of each argument the sharding that the caller's own array or shape carries, if any
    placements: tuple[Placement | None, ...] = ()
    #: lowers the same trace for another platform; None in other processes
    lower: Callable[[str], Traced] | None = None
    kernel_body: Callable[..., str] | None = None  #: as in ``Lowerings``; likewise
    #: rules that the user's module registered in the process that traced it
    kernel_rules: tuple[KernelRule, ...] = ()


def build(traced: Traced, name: str, dim_names: DimNames, source: str) -> Model:
    """Read the traced StableHLO into a ``Model``; ``source`` says where it came from."""
    program = read_program(traced, name)
    lower = traced.lower
    lowerings = Lowerings(
        None if lower is None else lambda platform: read_program(lower(platform), name)
    )
    lowerings.kernel_body = traced.kernel_body
    lowerings.programs.update(dict.fromkeys(sorted(program.platforms), program))
    return Model(
        name=identifier(name),
        dim_names={**(traced.dim_names or {}), **dim_names},
        trees=traced.trees,
        call_form=traced.call_form,
        source=source,
        function=traced.function,
        lowerings=lowerings,
        **program._asdict(),
    )


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Pause the collector of reference cycles.

    Tracing and reading make many small objects that stay, and it looks through all of them again
    and again: a quarter of the time for a program of 12,000 ops.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_collector()
def read_program(traced: Traced, name: str) -> LoweredProgram:
    """Read the traced StableHLO of the function that is called ``name``."""
    stages.tell("reading")
    for rule in traced.kernel_rules:
        register(rule)
    parsed = read.parse(
        traced.text,
        name=identifier(name),
        argument_paths=traced.paths,
        output_paths=traced.outputs,
        donated=traced.donated,
        keys=traced.keys,
        on_host=traced.on_host,
    )
    program = dataclasses.replace(
        parsed.program,
        annotations=(*_placed(parsed.program, traced.placements), *parsed.program.annotations),
    )
    notes = (*traced.notes, *parsed.notes, *program_notes(program), *_host_notes(program))
    return LoweredProgram(program, parsed.text, traced.platforms, notes)


def _host_notes(program: Program) -> list[str]:
    """A note that tells the user which arguments and results are in host memory."""
    arguments = [program.value_name[argument] for argument in program.host.arguments]
    results = [program.output_paths[i] for i in program.host.results]
    if not (arguments or results):
        return []
    names = [*arguments, *results]
    more = " ..." if len(names) > 8 else ""
    return [
        f"in host memory, not counted at the peak of a device: {', '.join(names[:8])}{more} "
        f"({counted(len(arguments), 'argument')}, {counted(len(results), 'result')})"
    ]


def _placed(program: Program, placements: Sequence[Placement | None]) -> list[Annotation]:
    """Annotations of arguments that carry a sharding and have none in the program."""
    annotated = {row.value for row in program.annotations if row.kind == "argument"}
    return [
        Annotation(
            value=argument,
            name=program.value_name[argument],
            where="",
            mesh=placement.mesh,
            spec=placement.spec,
            replicated=(),
            kind="argument",
        )
        for argument, placement in enumerate(placements)
        if placement is not None
        and argument not in annotated
        and len(placement.spec) == len(program.dims(argument))
    ]


def identifier(name: str) -> str:
    """``name`` with everything but letters, digits and underscores replaced.

    It is ``main`` if nothing is left.
    """
    cleaned = "".join(
        character if character.isalnum() or character == "_" else "_" for character in name
    ).strip("_")
    return cleaned or "main"


def in_child(target: str, *args: Any, virtual_devices: int = 0, **kwargs: Any) -> Any:
    """``isolate.run_in_child`` in a child that has so many CPU devices.

    With them the user's code can make a mesh; 0 leaves their number to JAX.
    """
    env = dict(isolate.WITHOUT_ACCELERATOR)
    if virtual_devices:
        flags = os.environ.get("XLA_FLAGS", "").split()
        count = f"--xla_force_host_platform_device_count={virtual_devices}"
        env["XLA_FLAGS"] = " ".join([*flags, count])
    return isolate.run_in_child(target, *args, env=env, **kwargs)
