"""How often a loop runs, read from the module.

JAX's ``scan`` and ``fori_loop`` count with an integer that starts at a constant, grows by a
constant and is compared with a constant.  All three are traced through the values that a loop hands
on unchanged.  The trip count of any other loop is unknown until it runs.
"""

from __future__ import annotations

import math
from typing import Any

from toast_lab._jaxlib import ir
from toast_lab.ir.dead import terminator

_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}
_SAME = (
    "stablehlo.convert",
    "stablehlo.reshape",
    "stablehlo.broadcast_in_dim",
    "stablehlo.optimization_barrier",
)


def trip_count(loop: Any, known: dict[Any, int | None] | None = None) -> float | None:
    """Trips of a ``stablehlo.while``, None if it does not count from one constant to another.

    ``known`` as for ``constant``; loops of one module may share it while the module stays as it is.
    """
    condition, body = (region.blocks[0] for region in loop.regions)
    test = _definer(terminator(condition).operands[0])
    if test is None or test.name != "stablehlo.compare":
        return None
    direction = str(test.attributes["comparison_direction"]).rstrip(">").split()[-1]
    left, right = (_through(operand) for operand in test.operands)
    counter = _position(left, condition)
    if counter is None:
        left, right, direction = right, left, _MIRRORED.get(direction, direction)
        counter = _position(left, condition)
    if counter is None:
        return None
    start, limit = constant(loop.operands[counter], known), constant(right, known)
    step = _step(_through(terminator(body).operands[counter]), counter, body, known)
    if start is None or limit is None or not step:
        return None
    return _count(start, limit, step, direction)


def _count(start: int, limit: int, step: int, direction: str) -> float | None:
    if direction in ("GT", "GE"):  # counting down is counting up in the mirror
        start, limit, step, direction = -start, -limit, -step, _MIRRORED[direction]
    if direction == "NE":
        trips, rest = divmod(limit - start, step)
        return float(trips) if trips >= 0 and rest == 0 else None
    if direction == "LE":
        limit, direction = limit + 1, "LT"
    if direction != "LT":
        return None
    if start >= limit:
        return 0.0
    return float(math.ceil((limit - start) / step)) if step > 0 else None


def _step(after: Any, counter: int, body: Any, known: dict[Any, int | None] | None) -> int | None:
    definer = _definer(after)
    if definer is None or definer.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = (_through(operand) for operand in definer.operands)
    if definer.name == "stablehlo.add" and _position(right, body) == counter:
        left, right = right, left
    by = constant(right, known)
    if _position(left, body) != counter or by is None:
        return None
    return by if definer.name == "stablehlo.add" else -by


def constant(value: Any, known: dict[Any, int | None] | None = None) -> int | None:
    """The integer that a scalar value always is, None if it is not known.

    ``known`` keeps answers, so that deeply nested loops are not climbed again and again.
    """
    known = {} if known is None else known
    passed = []
    number = None
    while True:
        value = _through(value)
        if value in known:
            number = known[value]
            break
        passed.append(value)
        definer = _definer(value)
        if definer is not None and definer.name == "stablehlo.constant":
            number = _integer(definer.attributes["value"])
            break
        # The result of a loop, or the argument of a block: of a function, or of a loop.
        loop = definer if definer is not None else value.owner.owner.operation
        if loop.name != "stablehlo.while":
            break
        position = int(value.arg_number) if definer is None else int(value.result_number)
        body = loop.regions[1].blocks[0]
        if _position(_through(terminator(body).operands[position]), body) != position:
            break
        value = loop.operands[position]
    known.update(dict.fromkeys(passed, number))
    return number


def _integer(attribute: Any) -> int | None:
    text = str(attribute)
    value = text[text.find("<") + 1 : text.find(">")]
    try:
        return int(value)
    except ValueError:
        return None


def _through(value: Any) -> Any:
    definer = _definer(value)
    while definer is not None and definer.name in _SAME and len(definer.operands) == 1:
        value = definer.operands[0]
        definer = _definer(value)
    return value


def _definer(value: Any) -> Any:
    return None if isinstance(value, ir.BlockArgument) else value.owner


def _position(value: Any, block: Any) -> int | None:
    if not isinstance(value, ir.BlockArgument) or value.owner != block:
        return None
    return int(value.arg_number)
