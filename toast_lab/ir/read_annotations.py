"""Reads the user's own shardings from a canonical module (see ``annotations``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toast_lab import _jaxlib
from toast_lab.ir.annotations import CONSTRAINT, Annotation
from toast_lab.ir.program import Program


def read_annotations(
    module: Any,
    main: Any,
    program: Program,
    numbers: dict[Any, int],
    op_results: Sequence[tuple[Any, Sequence[Any]]],
) -> tuple[Annotation, ...]:
    """All annotations of @main.

    Args:
        module: the canonical module.
        main: its function.
        program: the program read from it.
        numbers: index in the program of each MLIR value.
        op_results: (MLIR op, its results) for every op of the program except the arguments.
    """
    meshes = _jaxlib.meshes(module)
    annotations: list[Annotation] = []

    def add(value: int, attribute: Any, kind: str, name: str | None = None) -> None:
        if attribute is None:
            return
        rank = len(program.dims(value))
        mesh, spec, replicated, trouble = _jaxlib.sharding_parts(attribute, meshes, rank)
        if not (mesh or trouble):
            return
        has_source_line = kind in ("constraint", "op")
        annotations.append(
            Annotation(
                value=value,
                name=program.value_name[value] if name is None else name,
                where=program.where(int(program.value_op[value])) if has_source_line else "",
                mesh=mesh,
                spec=spec,
                replicated=replicated,
                kind=kind,
                trouble=trouble,
            )
        )

    for argument, attribute in enumerate(_jaxlib.argument_shardings(main)):
        add(argument, attribute, "argument")
    for operation, results in op_results:
        if operation.name == CONSTRAINT:
            add(numbers[results[0]], operation.attributes["sharding"], "constraint")
        elif "sdy.sharding" in operation.attributes and len(results) == len(operation.results):
            for result, attribute in zip(results, _jaxlib.result_shardings(operation), strict=True):
                add(numbers[result], attribute, "op")
    outputs = zip(
        program.outputs.tolist(), program.output_paths, _jaxlib.output_shardings(main), strict=True
    )
    for value, path, attribute in outputs:
        add(value, attribute, "result", path)
    return tuple(annotations)
