"""A saved search: what it takes to replay a search from its seed, and to go on with it.

What a search does follows from its problem, method, seed and options, and from what it was told
while it ran: readings of the clock, and solutions of integer programs that had a time limit. A
saved search keeps these and the best plan. The trace is not kept: the replay makes it again.

The file is that of the best plan (``plan_file``) with one more entry, ``search``. So whatever reads
plans reads it too, even if the search can no longer be replayed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toast_lab import checks
from toast_lab._version import __version__
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem, ToastError, join_offenders
from toast_lab.files import PathLike, write_whole
from toast_lab.search.trace import Trace
from toast_lab.sharding import plan_file, portable
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.text import bytes_text

FORMAT = 1  #: of the entry ``search``
MOST_BYTES = 256 * 2**20  #: of a file; that of a program of 12,000 ops has half a MiB
COPY_ADVICE = "give another copy of the file, or start a new search"


@dataclasses.dataclass(frozen=True, eq=False)
class SavedSearch:
    """A search that can be replayed.

    Attributes:
        facts: what was searched, how, and how far: see ``_FACTS``.
        told: what the search was told while it ran, in order (``SearchReplay``).
        plan: the best plan, as ``plan_file`` writes it.
    """

    facts: Mapping[str, Any]
    told: Sequence[Any]
    plan: Mapping[str, Any]

    @classmethod
    def of(cls, trace: Trace, plan: ShardingPlan) -> SavedSearch:
        """The search of a trace, whose best plan is ``plan``."""
        return cls(dict(trace.about), list(trace.told), plan_file.to_json(plan))

    def text(self) -> str:
        """The content of the file."""
        search = {"format": FORMAT, **self.facts, "told": self.told}
        return portable.file_text({**self.plan, "search": search})

    def save(self, path: PathLike) -> None:
        """Write the file, whole or not at all. Raises NotSaved if it cannot be written."""
        write_whole(path, self.text(), "the search")

    @classmethod
    def load(cls, path: PathLike) -> SavedSearch:
        """Read a file back.

        Raises:
            InvalidProblem: the file cannot be read, is no saved search, or is damaged.
        """
        try:
            with Path(path).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise InvalidProblem(
                f"{path}: cannot read this saved search: {error.strerror or error}; {COPY_ADVICE}"
            ) from None
        return cls.from_bytes(content, str(path))

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> SavedSearch:
        """The search in the content of a file; ``where`` names it. Raises as ``load`` does."""
        if len(content) > MOST_BYTES:
            raise InvalidProblem(
                f"{where}: a saved search has at most {bytes_text(MOST_BYTES)}, but this file has "
                f"more; {COPY_ADVICE}"
            )
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InvalidProblem(
                f"{where}: cannot read this saved search: it is no JSON, or was cut off "
                f"({str(error)[:100]}); {COPY_ADVICE}"
            ) from None
        search = data.pop("search", None) if isinstance(data, dict) else None
        if not isinstance(search, dict) or search.get("format") != FORMAT:
            raise InvalidProblem(
                f"{where}: no saved search of format {FORMAT}; give a file that a search was "
                "saved to (--save-search, result.save), or start a new search"
            )
        checksum = portable.checksum({**data, "search": search})
        offences = [*_offenders(search)]
        if data.pop(portable.CHECKSUM, checksum) != checksum:
            offences.insert(0, f"its content has the checksum {checksum[:23]}..., not its own")
        if offences:
            raise InvalidProblem(
                f"{where}: damaged saved search; {COPY_ADVICE}:\n{join_offenders(offences)}"
            )
        told = search.pop("told")
        del search["format"]
        return cls(search, told, data)

    def best_plan(self, problem: Problem) -> ShardingPlan:
        """The best plan of this search of ``problem``. Raises InvalidProblem if it is damaged."""
        try:
            return plan_file.from_json(dict(self.plan), problem.analysis, problem.mesh)
        except ToastError as error:
            raise InvalidProblem(f"the best plan is damaged: {error}; {COPY_ADVICE}") from None

    @property
    def remedy(self) -> str:
        """What to do if the search cannot be replayed."""
        facts = self.facts
        return (
            f"Nothing is lost: the best plan, of {facts['best_time_s'] * 1e3:.3f} ms and "
            f"{bytes_text(facts['best_peak_bytes'])}, is in the file of the saved search, which "
            "--plan and tl.Plan.load read as a plan. To search further, start a new search"
        )


def facts_of(trace: Trace) -> dict[str, Any]:
    """How far the search of a trace came: the part of ``facts`` that a replay has to agree with."""
    row = trace.row
    improving = np.flatnonzero(row["best"] == np.arange(row.n))
    best = int(row["best"][-1])
    return {
        "version": __version__,
        "simulations": row.n,
        "best_time_s": float(row["time_s"][best]),
        "best_peak_bytes": float(row["peak_bytes"][best]),
        "improvements": improving.tolist(),
        "improved_s": row["elapsed_s"][improving].tolist(),
    }


def _offenders(search: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the entry ``search`` of a file, a sentence each."""
    for name, offence_of in _FACTS.items():
        if name not in search:
            yield f"search lacks {name}"
        elif offence := offence_of(search[name]):
            yield f"search.{name} {offence}"
    rows, seconds = search.get("improvements"), search.get("improved_s")
    if isinstance(rows, list) and isinstance(seconds, list) and len(rows) != len(seconds):
        yield f"search has {len(rows)} improvements, but the times of {len(seconds)}"


def _is_a(kind: type, noun: str) -> Callable[[Any], str]:
    return lambda value: "" if isinstance(value, kind) else f"must be {noun}, got {value!r:.60}"


def _list_of(offence_of: Callable[[Any], str]) -> Callable[[Any], str]:
    def offence(value: Any) -> str:
        if not isinstance(value, list):
            return f"must be a list, got {value!r:.60}"
        return next(filter(None, map(offence_of, value)), "")

    return offence


def _count(value: Any) -> str:
    return checks.whole_offence(value, 0, 2**63)


def _amount(value: Any) -> str:
    return checks.number_offence(value, 0.0)


def _limit(value: Any) -> str:
    return "" if value == math.inf else checks.number_offence(value, above=0.0)


_TEXT = _is_a(str, "a text")
_FACTS: dict[str, Callable[[Any], str]] = {
    "version": _TEXT,
    "program": _TEXT,
    "mesh": _TEXT,
    "machine": _TEXT,
    "memory_limit_bytes": _limit,
    "memory_weight": _amount,
    "paper_mode": _is_a(bool, "true or false"),
    "pins": _list_of(_TEXT),
    "method": _TEXT,
    "seed": lambda value: checks.whole_offence(value, 0, checks.MOST_SEED),
    "options": _is_a(dict, "an object"),
    "status": _TEXT,
    "elapsed_s": _amount,
    "evaluations": _count,
    "simulations": _count,
    "best_time_s": _amount,
    "best_peak_bytes": _amount,
    "improvements": _list_of(_count),
    "improved_s": _list_of(_amount),
    "told": _is_a(list, "a list"),
}
