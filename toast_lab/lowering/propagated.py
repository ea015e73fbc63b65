"""The shardings that Shardy's propagation gives every op of an annotated program.

Passes may abort their process, so this runs in child processes.
"""

from __future__ import annotations

from typing import Any

from toast_lab import _jaxlib
from toast_lab.ir import canonical
from toast_lab.lowering.annotate import OP_NUMBER

#: A tensor as (op index, position among operands or results, is it a result).
TensorPlace = tuple[int, int, bool]
#: Axes per dim of each tensor.
PropagatedAxes = dict[TensorPlace, Any]


def propagated(text: str) -> PropagatedAxes:
    """Axes per dim of every operand and result of every numbered op, after propagation.

    ``text`` comes from ``annotate`` or ``sparse.constrain``, with ``numbered=True``.
    """
    context = _jaxlib.make_context()
    module = _jaxlib.parse_module(context, text)
    _jaxlib.propagate(module)
    main = canonical.main_function(module)
    written = _jaxlib.numbered_axes(main, OP_NUMBER)
    read = _jaxlib.numbered_reads(main, OP_NUMBER)
    return {(*key, True): spec for key, spec in written.items()} | {
        (*key, False): spec for key, spec in read.items()
    }
