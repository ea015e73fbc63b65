"""What an audit finds, as frozen data.

Times are of one step, bytes on one device. Start reading at ``Finding``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from toast_lab.text import bytes_text
from toast_lab.written.annotated import Edits


@dataclasses.dataclass(frozen=True)
class Remedy:
    """One change to the annotations, priced: what to write, and what it saves."""

    text: str  #: what changes, as a phrase
    code: tuple[str, ...]  #: the lines to write
    edits: Edits
    time_s: float  #: of the step with the change
    peak_bytes: float
    fits: bool
    saved_s: float  #: negative: the step takes longer
    saved_bytes: float  #: of the peak; negative: it grows
    saved_share: float  #: of C(s), which counts memory above the limit as well as time
    removes: bool  #: the finding is gone
    #: what compiling the change showed, "" if it was not compiled
    confirmed: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **{
                field.name: getattr(self, field.name)
                for field in dataclasses.fields(self)
                if field.name != "edits"
            },
            "code": list(self.code),
        }

    def __str__(self) -> str:
        return f"{self.text}: {self.saving_text()}"

    def saving_text(self) -> str:
        """What it saves of a step and of the peak, each with its share of what was written."""
        step_s, peak_bytes = self.time_s + self.saved_s, self.peak_bytes + self.saved_bytes
        time_text = _changed(f"{abs(self.saved_s) * 1e3:.3f} ms", self.saved_s, step_s, "a step")
        if not self.saved_bytes:
            return time_text
        amount = bytes_text(abs(self.saved_bytes))
        return f"{time_text}, {_changed(amount, self.saved_bytes, peak_bytes, 'the peak')}"


def _changed(amount: str, saved: float, whole: float, of: str) -> str:
    share = f" ({abs(saved) / whole:.1%} of {of})" if whole else ""
    return f"{amount}{share} {'saved' if saved >= 0 else 'more'}"


class Kind:
    """Names of the kinds of findings, in the order that these have where changes save alike."""

    #: the partitioner finds no way between two shardings but to make the tensor whole
    REMATERIALISATION = "involuntary full rematerialisation"
    #: arguments that are whole on an axis that cuts others of the same names and shapes
    REPLICATED_STATE = "replicated state"
    #: a dim cut by axes that do not divide it: every device works on padding
    UNEVEN_DIM = "uneven dim"
    #: ops that every device of an axis repeats, behind the place where a sharding is lost
    REPLICATED_WORK = "replicated work"
    #: a collective in a loop that could run once before it
    REPEATED_COLLECTIVE = "collective in a loop"
    #: a collective that a change of the annotations avoids at a gain
    AVOIDABLE_COLLECTIVE = "collective"
    #: a collective that the compiler adds to those that the shardings need
    ADDED_COLLECTIVE = "collective added by the compiler"


KINDS = tuple(value for name, value in vars(Kind).items() if name.isupper())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault of a sharded program, at one source line."""

    kind: str  #: one of ``KINDS``
    op: int = -1  #: index in the program, -1: it belongs to an argument
    where: str = ""  #: source line, "" for an argument
    place: str = ""  #: the line and those that call it
    subject: str  #: the tensor, with its shape
    axes: tuple[str, ...]  #: mesh axes concerned
    time_s: float = 0.0  #: that the fault costs in one step, as far as it is priced
    bytes: float  #: sent, or held too much, by one device
    count: int = 1  #: places alike that it stands for, such as layers
    why: str
    #: the sharding conflict behind it, "" if there is none
    conflict: str = ""
    remedy: Remedy | None = None  #: the change that saves most of those that remove it
    others: tuple[Remedy, ...] = ()  #: further changes that remove it, best first
    also: tuple[str, ...] = ()  #: other findings that the same change removes
    ops: tuple[int, ...] = ()  #: all ops concerned
    values: tuple[int, ...] = ()  #: all tensors concerned

    @property
    def rank(self) -> int:
        """Place of its kind among ``KINDS``."""
        return KINDS.index(self.kind)

    @property
    def saved_share(self) -> float:
        """Share of C(s) that the remedy saves; 0 without one."""
        return self.remedy.saved_share if self.remedy is not None else 0.0

    def cost_share(self, step_s: float) -> float:
        """The share of a step that the fault costs, or that its remedy saves if that is more."""
        return max(self.saved_share, self.time_s / step_s if step_s else 0.0)

    @property
    def title(self) -> str:
        """One line: kind and tensor."""
        times = f" ({self.count} alike)" if self.count > 1 else ""
        return f"{self.kind}: {self.subject}{times}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        data = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("remedy", "others")
        }
        return {
            **{
                key: list(value) if isinstance(value, tuple) else value
                for key, value in data.items()
            },
            "remedy": None if self.remedy is None else self.remedy.to_json(),
            "others": [remedy.to_json() for remedy in self.others],
        }


class AuditRow(NamedTuple):
    """The figures of one sharding of the program."""

    name: str
    time_s: float  #: of a step, priced
    peak_bytes: float
    sent_bytes: float  #: in collectives, by one device in one step
    fits: bool
    compiled_s: float | None = None  #: of a step, by the compiler; None: not compiled, or no clock
    compiled_peak_bytes: float | None = None
    compiled_sent_bytes: float | None = None
