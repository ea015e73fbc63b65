"""A code for what decides the time of a step, apart from its op.

Times from better sources than the rules are looked up by this code (see ``price_list``).
"""

from __future__ import annotations

from toast_lab.cost.device_parts import result_is_summed, result_layout
from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.kernels import compiled, helper
from toast_lab.packs import Int64Array
from toast_lab.sharding.step_kinds import ALL_GATHER, COMPUTE
from toast_lab.sharding.steps import Steps


@compiled
def step_codes(inputs: PriceInputs, steps: Steps, n_steps: int, codes: Int64Array) -> None:
    """Fill ``codes[S]`` with the ``step_code`` of each step."""
    for row in range(n_steps):
        codes[row] = step_code(inputs, steps, row, n_steps)


@helper
def entry_of(inputs: PriceInputs, steps: Steps, row: int, n_steps: int) -> int:
    """Entry of the list for a step, -1 if there is none."""
    listed, op = inputs.listed, steps.op[row]
    code = step_code(inputs, steps, row, n_steps)
    for entry in range(listed.begin[op], listed.end[op]):
        if listed.code[entry] == code:
            return entry
    return -1


@helper
def step_code(inputs: PriceInputs, steps: Steps, row: int, n_steps: int) -> int:
    """63 bits for what decides the time of a step, apart from its op.

    For a computing step these are the layouts in which operands are read and results written; for a
    step that moves a value, its kind, the layouts before and after, and the use or result that it
    serves. The code is the same for all ops of a class, folded or not.
    """
    tables, op, kind = inputs.tables, steps.op[row], steps.kind[row]
    code = _mixed(kind, steps.axes[row])
    if kind == COMPUTE:
        return _computing_code(inputs, steps, row, n_steps, code)
    if runs_ahead(inputs, steps, row):
        following = row
        while following < n_steps and steps.kind[following] != COMPUTE:
            following += 1
        code = _computing_code(inputs, steps, following, n_steps, code)
    position = -1 - steps.use[row] + tables.use_ptr[op]
    if steps.use[row] < 0:
        position = 0
        for result_row in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
            if tables.result[result_row] == steps.value[row]:
                position = result_row - tables.result_ptr[op]
    return _mixed(_mixed(_mixed(code, steps.before[row]), steps.after[row]), position)


@helper
def _computing_code(
    inputs: PriceInputs, steps: Steps, row: int, n_steps: int, begin_with: int
) -> int:
    """``step_code`` of the computing step ``row``, mixed into ``begin_with``."""
    tables, op, code = inputs.tables, steps.op[row], begin_with
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        code = _mixed(code, steps.wanted[tables.use_want[use]])
        # A view is read from the memory of its root, unless a copy was brought.
        if steps.copy[use] == -1:
            code = _mixed(code, 1 + steps.layout[inputs.facts.root[use]])
    is_summed = result_is_summed(inputs.facts, steps, row, n_steps)
    for result_row in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
        result = tables.result[result_row]
        code = _mixed(code, result_layout(steps, row, n_steps, result))
        if is_summed:
            code = _mixed(code, steps.layout[result])
    return code


@helper
def runs_ahead(inputs: PriceInputs, steps: Steps, row: int) -> bool:
    """Does a step gather a value made long before, so that it runs beside earlier products?"""
    use = steps.use[row]
    if steps.kind[row] != ALL_GATHER or use < 0:
        return False
    return inputs.rates.gathered_ahead > 0.0 and inputs.facts.use.ahead[use]


@helper
def _mixed(code: int, number: int) -> int:
    """A hash of both numbers, not negative; products wrap around."""
    code = (code ^ (number * 0x2545F4914F6CDD1D)) * 0x369DEA0F31A53F85
    return (code ^ (code >> 29)) & 0x7FFFFFFFFFFFFFFF
