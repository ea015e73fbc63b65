"""Reads the shardings that a user has written into a program (see ``annotations``).

They are read from its canonical module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toast_lab import _jaxlib
from toast_lab.ir.annotations import CONSTRAINT, Annotation
from toast_lab.ir.program import Program


def read_annotations(
    module: Any,
    main: Any,
    numbers: dict[Any, int],
    made: Sequence[tuple[Any, Sequence[Any]]],
    program: Program,
) -> tuple[Annotation, ...]:
    """All annotations of @main.

    Args:
        module: canonical.
        main: its function.
        numbers: values of the program by MLIR value.
        made: (MLIR op, its results) of every op of the program but the arguments.
        program: what was read from it.
    """
    meshes = _jaxlib.meshes(module)
    found: list[Annotation] = []

    def add(value: int, name: str, attribute: Any, kind: str, where: str) -> None:
        rank = len(program.dims(value))
        mesh, dims, replicated, trouble = _jaxlib.sharding_parts(attribute, meshes, rank)
        if mesh or trouble:
            found.append(Annotation(value, name, where, mesh, dims, replicated, kind, trouble))

    for i, attribute in enumerate(_jaxlib.argument_shardings(main)):
        if attribute is not None:
            add(i, program.value_name[i], attribute, "argument", "")
    for operation, results in made:
        if operation.name == CONSTRAINT:
            value = numbers[results[0]]
            where = program.where(int(program.value_op[value]))
            add(
                value,
                program.value_name[value],
                operation.attributes["sharding"],
                "constraint",
                where,
            )
        elif "sdy.sharding" in operation.attributes and len(results) == len(operation.results):
            for result, attribute in zip(results, _jaxlib.result_shardings(operation), strict=True):
                value = numbers[result]
                where = program.where(int(program.value_op[value]))
                add(value, program.value_name[value], attribute, "op", where)
    outputs = zip(
        program.outputs.tolist(), program.output_paths, _jaxlib.output_shardings(main), strict=True
    )
    for value, path, attribute in outputs:
        if attribute is not None:
            add(value, path, attribute, "result", "")
    return tuple(found)
