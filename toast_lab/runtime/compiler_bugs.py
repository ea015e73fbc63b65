"""Explanations of known compiler faults that stop a program.

Each names the user's op that is affected, the cause and a workaround.

Plans are written so as to avoid these faults (``ir.fourier``); the explanations are for programs
that still run into one. ``docs/certification.md`` has a reproducer of each.
"""

from __future__ import annotations

from toast_lab.errors import join_offenders
from toast_lab.ir.program import Program

_FFT = "fft_thunk.cc"


def explain(message: str, program: Program) -> str:
    """Explain an error of a compiler or device to the user of ``program``.

    Empty if the error is none of the known faults.
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
    first_line = next(line.strip() for line in message.splitlines() if _FFT in line)
    return (
        "XLA's CPU compiler gave a Fourier transform a memory layout that it then refuses at run "
        "time, a fault of XLA "
        f"and not of the plan ({first_line[:200]}). XLA does not say which of "
        f"these:\n{join_offenders(transforms)}\n"
        "Workarounds: keep the transform's operand row-major, with "
        "jax.experimental.layout.with_layout_constraint(x, "
        "Layout(major_to_minor=tuple(range(x.ndim)))) around operand and result; transform the "
        "last dims instead of "
        "inner ones; or run it on a GPU or TPU, whose compilers do not have this fault."
    )
