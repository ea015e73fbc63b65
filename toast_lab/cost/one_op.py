"""Prices of one op by itself: lowered and priced with layouts that the caller has set."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost import kernel, price_inputs
from toast_lab.cost.price_inputs import PriceInputs, Prices, StepPrices
from toast_lab.kernels import helper
from toast_lab.packs import Int32Matrix, packed
from toast_lab.sharding import steps as st
from toast_lab.sharding.steps import Steps


@packed
class OpPricer(NamedTuple):
    """A folded program on a machine, and arrays to price one op at a time with.

    Callers set the row of the op in ``op_factor`` and the layouts around it in ``steps``.
    """

    inputs: PriceInputs
    op_factor: Int32Matrix  #: [K, A] all -1 between calls
    steps: Steps
    each: StepPrices
    prices: Prices


def make_op_pricer(inputs: PriceInputs, n_op_rows: int) -> OpPricer:
    """An op pricer for a program folded to ``n_op_rows`` rows of ops."""
    n_axes = len(inputs.axis_size)
    steps = st.buffers(inputs.tables, n_axes)
    return OpPricer(
        inputs=inputs,
        op_factor=np.full((n_op_rows, n_axes), -1, np.int32),
        steps=steps,
        each=price_inputs.step_prices(len(steps.kind)),
        prices=price_inputs.prices(inputs.tables),
    )


@helper
def price_one(op_pricer: OpPricer, op: int) -> int:
    """Lower and price ``op``; gives the number of its steps."""
    inputs, steps = op_pricer.inputs, op_pricer.steps
    ops = np.full(1, op, np.int32)
    n_steps = st.lower_into(inputs.tables, ops, op_pricer.op_factor, inputs.axis_size, steps)
    kernel.price_steps(inputs, ops, steps, n_steps, op_pricer.each, op_pricer.prices)
    return n_steps
