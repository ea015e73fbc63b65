"""The output of a frontend's tracing, and the ``Model`` that is read from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.frontends import stages
from toast_lab.frontends.logical_names import dim_names_of
from toast_lab.ir import read
from toast_lab.ir.kernel_rules import KernelRule, register
from toast_lab.ir.model import DimNames, Function, Model
from toast_lab.ir.platforms import ALL_PLATFORMS, LoweredProgram, Lowerings
from toast_lab.ir.random_keys import Keys


class Traced(NamedTuple):
    """StableHLO from a frontend, and the facts that its text alone does not contain."""

    text: str
    paths: Sequence[str]  #: of the arguments, in order
    outputs: Sequence[str]  #: paths of the results
    donated: Sequence[bool]
    trees: Any  #: as in Model
    notes: tuple[str, ...]
    function: Function | None = None
    keys: Keys | None = None  #: which values are typed random keys; None if none are
    platforms: frozenset[str] = ALL_PLATFORMS  #: as in Model
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
    if traced.function is not None:
        dim_names = {**dim_names_of(program.program, traced.function.given), **dim_names}
    return Model(
        name=identifier(name),
        dim_names=dim_names,
        trees=traced.trees,
        source=source,
        function=traced.function,
        lowerings=lowerings,
        **program._asdict(),
    )


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
    )
    return LoweredProgram(
        parsed.program, parsed.text, traced.platforms, (*traced.notes, *parsed.notes)
    )


def identifier(name: str) -> str:
    """``name`` with everything but letters, digits and underscores replaced.

    It is ``main`` if nothing is left.
    """
    cleaned = "".join(
        character if character.isalnum() or character == "_" else "_" for character in name
    ).strip("_")
    return cleaned or "main"


def in_child(target: str, *args: Any, **kwargs: Any) -> Any:
    """``isolate.run_in_child`` with JAX on the CPU: reading and tracing need no accelerator."""
    return isolate.run_in_child(target, *args, env=isolate.WITHOUT_ACCELERATOR, **kwargs)
