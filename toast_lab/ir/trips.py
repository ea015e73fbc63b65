"""Trip counts of loops, read from the module.

JAX's ``scan`` and ``fori_loop`` count with an integer that starts at a constant, grows by a
constant and is compared with a constant. All three constants are traced through the values that
loops pass on unchanged. The trip count of any other loop is unknown until it runs.
"""

from __future__ import annotations

import math
from typing import Any

from toast_lab._jaxlib import ir
from toast_lab.ir.dead import terminator

_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}
_VALUE_PRESERVING = (
    "stablehlo.convert",
    "stablehlo.reshape",
    "stablehlo.broadcast_in_dim",
    "stablehlo.optimization_barrier",
)


def trip_count(loop: Any, known: dict[Any, int | None] | None = None) -> float | None:
    """Trip count of a ``stablehlo.while``, None if it does not count from one constant to another.

    ``known`` is a cache, as for ``constant``; the loops of one module may share it as long as the
    module does not change.
    """
    condition, body = (region.blocks[0] for region in loop.regions)
    test = _defining_op(terminator(condition).operands[0])
    if test is None or test.name != "stablehlo.compare":
        return None
    direction = str(test.attributes["comparison_direction"]).rstrip(">").split()[-1]
    left, right = (_unconverted(operand) for operand in test.operands)
    counter = _argument_index(left, condition)
    if counter is None:
        left, right, direction = right, left, _MIRRORED.get(direction, direction)
        counter = _argument_index(left, condition)
    if counter is None:
        return None
    start, limit = constant(loop.operands[counter], known), constant(right, known)
    step = _step(_unconverted(terminator(body).operands[counter]), counter, body, known)
    if start is None or limit is None or not step:
        return None
    return _count(start, limit, step, direction)


def _count(start: int, limit: int, step: int, direction: str) -> float | None:
    if direction in ("GT", "GE"):  # counting down equals counting up with all signs reversed
        start, limit, step, direction = -start, -limit, -step, _MIRRORED[direction]
    if direction == "NE":
        trips, remainder = divmod(limit - start, step)
        return float(trips) if trips >= 0 and remainder == 0 else None
    if direction == "LE":
        limit, direction = limit + 1, "LT"
    if direction != "LT":
        return None
    if start >= limit:
        return 0.0
    return float(math.ceil((limit - start) / step)) if step > 0 else None


def _step(
    next_counter: Any, counter: int, body: Any, known: dict[Any, int | None] | None
) -> int | None:
    definer = _defining_op(next_counter)
    if definer is None or definer.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = (_unconverted(operand) for operand in definer.operands)
    if definer.name == "stablehlo.add" and _argument_index(right, body) == counter:
        left, right = right, left
    increment = constant(right, known)
    if _argument_index(left, body) != counter or increment is None:
        return None
    return increment if definer.name == "stablehlo.add" else -increment


def constant(value: Any, known: dict[Any, int | None] | None = None) -> int | None:
    """The integer that a scalar value always equals, None if it is not known.

    ``known`` caches the answers, so that deeply nested loops are not traversed again and again.
    """
    known = {} if known is None else known
    traversed = []
    integer = None
    while True:
        value = _unconverted(value)
        if value in known:
            integer = known[value]
            break
        traversed.append(value)
        definer = _defining_op(value)
        if definer is not None and definer.name == "stablehlo.constant":
            integer = _integer(definer.attributes["value"])
            break
        # The value is a loop's result, or an argument of a loop's block or of a function.
        loop = definer if definer is not None else value.owner.owner.operation
        if loop.name != "stablehlo.while":
            break
        position = int(value.arg_number) if definer is None else int(value.result_number)
        body = loop.regions[1].blocks[0]
        if _argument_index(_unconverted(terminator(body).operands[position]), body) != position:
            break
        value = loop.operands[position]
    known.update(dict.fromkeys(traversed, integer))
    return integer


def _integer(attribute: Any) -> int | None:
    printed = str(attribute)
    digits = printed[printed.find("<") + 1 : printed.find(">")]
    try:
        return int(digits)
    except ValueError:
        return None


def _unconverted(value: Any) -> Any:
    definer = _defining_op(value)
    while definer is not None and definer.name in _VALUE_PRESERVING and len(definer.operands) == 1:
        value = definer.operands[0]
        definer = _defining_op(value)
    return value


def _defining_op(value: Any) -> Any:
    return None if isinstance(value, ir.BlockArgument) else value.owner


def _argument_index(value: Any, block: Any) -> int | None:
    if not isinstance(value, ir.BlockArgument) or value.owner != block:
        return None
    return int(value.arg_number)
