"""Our plans beside those of other methods, and the confirmed searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evaluation import pages
from evaluation.corpus import confirmed, confirmed_curves, plans, programs
from evaluation.corpus.judged_plans import Pair, by_problem, fitting_times
from evaluation.row_files import Row

NARROWLY = 0.01  #: share by which a rival may be quicker without being ahead


_RIVALS = {
    plans.OURS: "ours",
    "data both": "data parallel",
    "fully sharded": "fully sharded",
    "data + tensor parallel": "data + tensor",
    "fully sharded + tensor parallel": "fully sharded + tensor",
    "fsdp": "heaviest dim, one axis",
    "fsdp both": "heaviest dim",
    "tensor": "data + heaviest dim",
    plans.RIVAL: "AutoSharding",
    "alpa": "Alpa",
    "automap": "AutoMap",
}


def table(every: Sequence[Pair]) -> list[str]:
    """A table of the plans that methods find, for programs whose plan of our search was judged."""
    rows = []
    for group in by_problem(every):
        times = fitting_times(group)
        ratio = _rival_ratio(times)
        if ratio is None:
            continue
        program = f"*{group[0].program}*" if group[0].is_unseen else group[0].program
        cells = [f"{1e3 * times[name]:.3g}" if name in times else "-" for name in _RIVALS]
        rows.append((program, group[0].topology, *cells, f"{ratio:.2f}"))
    columns = (*_RIVALS.values(), "best rival / ours")
    return pages.table(("program", "target", *(f">{column}" for column in columns)), rows)


class Confirmation(NamedTuple):
    """A confirmed search beside the best rival plan."""

    row: Row
    rival_s: float | None
    rival: str

    @property
    def head(self) -> tuple[str, str]:
        """Program and target of the search."""
        return self.row["program"], self.row["topology"]

    @property
    def ratio(self) -> float | None:
        """The rival's time over ours; None if either is unknown."""
        best_s = self.row.get("best")
        return None if best_s is None or self.rival_s is None else self.rival_s / best_s


def confirmations_of(every: Sequence[Pair]) -> list[Confirmation]:
    """Every confirmed search, beside the best rival plan of its program."""
    times = {
        (group[0].program, group[0].compiled["digest"], group[0].topology): fitting_times(group)
        for group in by_problem(every)
    }
    found = []
    for row in confirmed.rows():
        head = (row["program"], row["digest"], row["topology"])
        rivals = [
            (time_s, name)
            for name, time_s in times.get(head, {}).items()
            if name != plans.OURS and not name.startswith(("random", plans.EARLIER))
        ]
        rival_s, rival = min(rivals, default=(None, "none was judged"))
        found.append(Confirmation(row, rival_s, rival))
    return found


def confirmed_in_brief(every: Sequence[Pair]) -> str:
    """A sentence: how often no rival is ahead on each target, and the cases in which one is."""
    judged = [
        (search, search.ratio) for search in confirmations_of(every) if search.ratio is not None
    ]
    behind = [(search, ratio) for search, ratio in judged if ratio < 1.0 - NARROWLY]
    counts = []
    for topology in dict.fromkeys(search.row["topology"] for search, _ in judged):
        searches = [search for search, _ in judged if search.row["topology"] == topology]
        families = {programs.PROGRAMS[search.row["program"]].family for search in searches}
        lost = sum(search.row["topology"] == topology for search, _ in behind)
        counts.append(
            f"{len(searches) - lost} of {len(searches)} on {topology} ({len(families)} families)"
        )
    losses = ", ".join(f"{' on '.join(search.head)} ({ratio:.2f})" for search, ratio in behind)
    text = f"No rival's plan is more than {NARROWLY:.0%} quicker on {', '.join(counts)}"
    return f"{text}; one is on {losses}." if losses else f"{text}."


def confirmations_table(every: Sequence[Pair]) -> list[str]:
    """A table of confirmed searches beside the rivals of each program."""
    rows: list[Sequence[str]] = []
    for search in confirmations_of(every):
        row = search.row
        if row.get("best") is None:
            reason = str(row.get("error", row.get("standing")))
            rows.append((*search.head, "", "-", "", "", "", reason, "", ""))
            continue
        first_s = row["verdicts"][0]["time_s"]
        cells = [
            *search.head,
            "-" if first_s is None else f"{1e3 * first_s:.3g}",
            f"{1e3 * row['best']:.3g}",
            "-" if search.rival_s is None else f"{1e3 * search.rival_s:.3g}",
            search.rival,
            "-" if search.ratio is None else f"{search.ratio:.2f}",
            row["standing"].lower().replace("_", " "),
            str(len(row["verdicts"])),
            f"{row['wall_s'] / 60:.1f}",
        ]
        rows.append(cells)
    columns = (
        "program,target,>first,>confirmed search,>rival,,>rival / ours,ended,>compiles,>minutes"
    )
    return pages.table(columns.split(","), rows)


def curves(every: Sequence[Pair]) -> list[confirmed_curves.ConfirmedCurve]:
    """Curves of the confirmed searches that have a rival."""
    found = []
    for one in confirmations_of(every):
        judged = [
            (verdict["at_s"], verdict["time_s"])
            for verdict in one.row.get("verdicts", ())
            if verdict["stands"] and verdict["time_s"] is not None
        ]
        if one.rival_s is not None and judged:
            topology = one.row["topology"]
            found.append(confirmed_curves.ConfirmedCurve(topology, one.rival_s, judged))
    return found


def ratios(every: Sequence[Pair]) -> dict[str, float]:
    """The best rival's time over ours, by program and target."""
    ratios = {
        f"{group[0].program} on {group[0].topology}": _rival_ratio(fitting_times(group))
        for group in by_problem(every)
    }
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _rival_ratio(times: Mapping[str, float]) -> float | None:
    """The best rival's time over ours; None if one of the two was not judged."""
    others = [times[name] for name in _RIVALS if name in times and name != plans.OURS]
    return min(others) / times[plans.OURS] if others and plans.OURS in times else None


README = pages.ROOT / "README.md"
_SHOWN = {
    "data both": "data parallel",
    "fully sharded": "FSDP",
    "data + tensor parallel": "data + tensor parallel",
    plans.RIVAL: "AutoSharding",
    plans.OURS: "TOAST Lab",
}


def readme(every: Sequence[Pair], text: str) -> str:
    """The README with its table of others' programs on which AutoSharding was run."""
    rows = []
    for group in by_problem(every):
        times, package = fitting_times(group), programs.PROGRAMS[group[0].program].package
        if not package or plans.RIVAL not in times or plans.OURS not in times:
            continue
        best_s = min(times[name] for name in _SHOWN if name in times)
        cells = [
            "-"
            if name not in times
            else f"**{1e3 * times[name]:.3g} ms**"
            if times[name] <= 1.005 * best_s
            else f"{1e3 * times[name]:.3g} ms"
            for name in _SHOWN
        ]
        rows.append((group[0].program, package, *cells))
    columns = ("program", "from", *(f">{name}" for name in _SHOWN.values()))
    return pages.with_part(text, "rivals", pages.table(columns, rows))
