"""Read compilers' messages: refusals for lack of memory, and involuntary rematerialisations.

Wordings were collected from libtpu 0.0.42.1 and XLA's CPU and GPU compilers of jaxlib 0.10.2; a
text that matches none of them gives None or an empty result.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from toast_lab.lowering.annotate import split_name

_SIZE = r"([\d.]+)\s*([KMGT]?)i?B?"
_UNITS = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
# "Used 17.02G of 15.75G hbm. Exceeded hbm capacity by 1.27G."
_USED = re.compile(rf"Used {_SIZE} of {_SIZE} (\w+)")
# "the total memory required for HLO temporaries (28.00G) exceeds available HBM (15.75G)"
_TEMPORARIES = re.compile(rf"required for [\w ]+ \({_SIZE}\) exceeds available (\w+) \({_SIZE}\)")
# GPU: "Out of memory while trying to allocate 17179869184 bytes."
_ALLOCATE = re.compile(r"trying to allocate ([\d.]+)\s*([KMGT]?)i?B")
_ALLOCATE_BYTES = re.compile(r"allocate (\d+) bytes")
_ENTRY = re.compile(
    r"^\s*(\d+)\. Size: " + _SIZE + r"\s*$(.*?)(?=^\s*=+\s*$|^\s*\d+\. Size: |\Z)",
    re.MULTILINE | re.DOTALL,
)
_SHAPE = re.compile(r"Shape: (.*)")
_OPERATOR = re.compile(r'Operator: op_name="((?:[^"\\]|\\.)*)"')
_LABEL = re.compile(r"XLA label: (.*)")
_TYPE = re.compile(r"Allocation type: (.*)")
_REMAT = re.compile(r"Involuntary full rematerialization")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')


class Allocation(NamedTuple):
    """One of the largest allocations that a refusal names."""

    bytes: float
    shape: str  #: as the compiler writes it
    op: int  #: op index, -1 if unknown
    op_name: str
    kind: str  #: "HLO temp", "scoped"


class Refusal(NamedTuple):
    """A program that the compiler refused because it does not fit."""

    needed_bytes: float | None  #: as the compiler states it; None if it does not
    limit_bytes: float | None
    #: ``needed_bytes`` counts temporaries alone, which the compiler checks before all else
    only_temporaries: bool
    allocations: tuple[Allocation, ...]  #: largest first
    message: str


class Rematerialised(NamedTuple):
    """An involuntary full rematerialisation.

    The partitioner gathers a value whole and slices it again, because it has no better way.
    """

    op: int  #: op index, -1 if unknown
    op_name: str
    text: str  #: the instruction, and the shardings before and after


def refusal(message: str) -> Refusal | None:
    """Read a compiler's error; None if it is not about memory."""
    if "RESOURCE_EXHAUSTED" not in message and "out of memory" not in message.lower():
        return None
    needed = limit = None
    temporaries = _TEMPORARIES.search(message)
    used = list(_USED.finditer(message))
    used = [match for match in used if match[5].lower() == "hbm"] or used
    if used:
        needed, limit = _bytes(*used[0].group(1, 2)), _bytes(*used[0].group(3, 4))
    elif temporaries:
        needed, limit = _bytes(*temporaries.group(1, 2)), _bytes(*temporaries.group(4, 5))
    elif exact := _ALLOCATE_BYTES.search(message):
        needed = float(exact[1])
    elif allocate := _ALLOCATE.search(message):
        needed = _bytes(*allocate.group(1, 2))
    return Refusal(
        needed_bytes=needed,
        limit_bytes=limit,
        only_temporaries=bool(temporaries and not used),
        allocations=_allocations(message),
        message=message.strip()[:4000],
    )


def _allocations(message: str) -> tuple[Allocation, ...]:
    allocations = []
    for entry in _ENTRY.finditer(message):
        details = entry[4]
        op, name = _op_and_name(_OPERATOR, details)
        allocations.append(
            Allocation(
                bytes=_bytes(*entry.group(2, 3)),
                shape=_field(_SHAPE, details),
                op=op,
                op_name=name or _field(_LABEL, details)[:200],
                kind=_field(_TYPE, details),
            )
        )
    unique = dict.fromkeys(allocations)  # one may be listed for several memories
    return tuple(sorted(unique, key=lambda allocation: -allocation.bytes))


def rematerialised(log: str) -> tuple[Rematerialised, ...]:
    """Involuntary full rematerialisations that XLA's partitioner warns of, in order, each once."""
    unique: dict[Rematerialised, None] = {}
    for match in _REMAT.finditer(log):
        warning = log[match.start() :].partition("\n")[0]
        op, op_name = _op_and_name(_OP_NAME, warning)
        unique[Rematerialised(op, op_name, " ".join(warning.split())[:1000])] = None
    return tuple(unique)


def _field(pattern: re.Pattern[str], details: str) -> str:
    match = pattern.search(details)
    return match[1].strip() if match else ""


def _op_and_name(pattern: re.Pattern[str], details: str) -> tuple[int, str]:
    """Op index and op name; (-1, "") if ``details`` name none."""
    match = pattern.search(details)
    return split_name(match[1]) if match else (-1, "")


def _bytes(amount: str, unit: str) -> float:
    return float(amount) * _UNITS[unit]
