"""``mark``: an identity that shows in a program which values a statement of the source made.

Differentiation, loops and inner functions treat it as they treat ``with_sharding_constraint``, so
the marks of a trace stand exactly where constraints after these statements would: on the values,
on those that are computed again, and on their cotangents. In StableHLO a mark is an optimization
barrier with the statement's number in its name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from toast_lab._jaxlib import stablehlo
from toast_lab.ir.program import Program

_NAME = re.compile(r"toast_site_(\d+)_([vc])(\d+)_(\d+)\b")


class Mark(NamedTuple):
    """What the name of a mark says."""

    number: int  #: of the statement
    is_cotangent: bool
    #: number of dims that enclosing calls of ``jax.vmap`` added
    batch_dims: int
    #: dims that the value has for the user
    rank: int


def mark(value: Any, number: int) -> Any:
    """``value``, marked as what statement ``number`` made."""
    rank = len(value.aval.shape)
    return _bind(value, number=number, is_cotangent=False, batch_dims=0, rank=rank)


def marks_in(program: Program) -> Iterator[tuple[int, Mark]]:
    """(op, what its name says) of the marks in a program."""
    for op in program.ops():
        if program.name_stack[op].endswith("/toast_site"):
            # Names before the last are those of what it was made from
            number, kind, batch_dims, rank = _NAME.findall(program.name_stack[op])[-1]
            yield op, Mark(int(number), kind == "c", int(batch_dims), int(rank))


@functools.cache
def _primitive() -> Any:
    primitive = core.Primitive("toast_site")
    primitive.def_impl(lambda value, **_: value)
    primitive.def_abstract_eval(lambda aval, **_: aval)

    def transposed(cotangent: Any, _value: Any, **params: Any) -> tuple[Any]:
        return (_bind(cotangent, **{**params, "is_cotangent": True}),)

    def batched(values: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
        params["batch_dims"] += dims[0] is not None
        return _bind(*values, **params), dims[0]

    def lowered(_context: Any, value: Any, **_: Any) -> Sequence[Any]:
        return list(stablehlo.OptimizationBarrierOp([value]).results)

    ad.deflinear2(primitive, transposed)
    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, lowered)
    return primitive


def _bind(value: Any, *, number: int, is_cotangent: bool, batch_dims: int, rank: int) -> Any:
    kind = "c" if is_cotangent else "v"
    params = dict(number=number, is_cotangent=is_cotangent, batch_dims=batch_dims, rank=rank)
    with jax.named_scope(f"toast_site_{number}_{kind}{batch_dims}_{rank}"):
        return _primitive().bind(value, **params)
