"""Known faults of compilers that stop a program, in words that help.

They say which op of the user's it is, why, and a way round.

Plans are written so that these are not met (``ir.fourier``); what is here speaks where one is met
all the same.  ``docs/certification.md`` has a reproducer of each.
"""

from __future__ import annotations

from toast_lab.errors import join_offenders
from toast_lab.ir.program import Program

_FFT = "fft_thunk.cc"


def explain(message: str, program: Program) -> str:
    """What a compiler's or device's error means for ``program``.

    It is empty if the error is none of the known faults.
    """
    if _FFT not in message:
        return ""
    transforms = [
        f"{program.value_name[program.results(op)[0]]} = fft "
        f"({program.detail[op] or 'no attributes'}) of "
        f"{list(program.dims(program.operands(op)[0]))} at {program.where(op)}"
        for op in program.ops()
        if program.kind[op] == "fft"
    ]
    first = next(line.strip() for line in message.splitlines() if _FFT in line)
    return (
        "XLA's CPU compiler gave a Fourier transform a memory layout that it then refuses at run "
        "time, a fault of XLA "
        f"and not of the plan ({first[:200]}). It does not say which of "
        f"these:\n{join_offenders(transforms)}\n"
        "Ways round: keep the transform's operand row-major, with "
        "jax.experimental.layout.with_layout_constraint(x, "
        "Layout(major_to_minor=tuple(range(x.ndim)))) around operand and result; transform the "
        "last dims instead of "
        "inner ones; or run it on a GPU or TPU, whose compilers do not have this fault."
    )
