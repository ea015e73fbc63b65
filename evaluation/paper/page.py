"""The evaluation as a page in Markdown, written from tables; every number on it is computed.

Start reading at ``page``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evaluation.pages import table
from evaluation.paper import paper_cases, tables
from evaluation.paper.paper_cases import OURS, Choice
from evaluation.paper.sizes import REASONS
from evaluation.paper.tables import CaseResult, Row
from evaluation.paper.targets import EvaluationTarget, contests_of
from toast_lab.sweep.sweep_worker import code_digest
from toast_lab.sweep.table import assignments_text
from toast_lab.text import bytes_text

Rows = Sequence[Row]


class Content(NamedTuple):
    """The data that a page is written from."""

    choice: Choice
    command: str
    results: list[CaseResult]
    n_searches: int  #: number of searches of the choice; those without a row are missing
    steps: Rows
    searches: Rows
    compiled: Rows
    compiled_wanted: int  #: number of plans to compile; 0 if none were requested
    targets: Sequence[EvaluationTarget]
    remark: str = ""  #: how the rows were made


def page(content: Content, folder: Path, target: Path) -> str:
    """Text of the page to be saved at ``target``; it links to tables and charts in ``folder``."""
    link = os.path.relpath(folder, target.parent)
    link = "" if link == "." else Path(link).as_posix() + "/"
    sections = [_head(content, link), _targets(content.targets)]
    if _rows_of_part(content.steps, "models"):
        sections += [_sizes(content), _step_times(content, link), _search_times(content, link)]
    if _rows_of_part(content.steps, "scaling"):
        sections.append(_scaling(content, link))
    sections += [_growth(content, link), _small(content)]
    if content.compiled_wanted:
        sections.append(_compiled(content, target))
    sections.append(_comparison_with_paper())
    return "\n\n".join(section for section in sections if section) + "\n"


def _rows_of_part(rows: Rows, part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def _head(content: Content, link: str) -> str:
    rows = [result.row for result in content.results]
    missing = content.n_searches - len(rows)
    backlog = (
        f"; {missing} of its {content.n_searches} are still missing; the same command runs them"
    )
    lines = [
        "# The paper's evaluation, rerun",
        "",
        "Section 5 of the TOAST paper asks how good the plans of the search are compared with "
        "those of other methods, how long each method takes, and how that grows with devices, "
        "sequence and layers. This page repeats these experiments, with every method on one "
        "analysis and one cost model.",
        "",
        *(f"- {finding}" for finding in _findings(content)),
        "",
        "Times and memory of plans are predictions of the cost model, the same one for all "
        "methods, and not measurements. Search times are wall-clock seconds, counted from the "
        "analysed program, in a warm process; the tables give the times of tracing, analysis and "
        "loading compiled kernels.",
    ]
    if content.choice.quick:
        lines += [
            "",
            "**These are small sizes to try the command out (`--quick`). The numbers mean "
            "nothing.**",
        ]
    lines += [
        "",
        f"`{content.command}` made this page from {len(rows)} searches{backlog if missing else ''}."
        " Each search ran in a process of its own, one after the other, for at most "
        f"{content.choice.seconds:g} s unless a table says otherwise. It ran on: "
        f"{'; '.join(_environments(rows)) or 'nothing yet'}.",
    ]
    codes = {str(row.get("code")) for row in rows if row.get("code")}
    if len(codes) > 1:
        lines.append(
            f"Rows come from {len(codes)} versions of the code ({', '.join(sorted(codes))})."
        )
    if codes - {code_digest()}:
        lines.append(
            "**Prices may have changed since:** some rows were made with older code than this "
            "page. Without `rows.jsonl` the same command makes all of them again."
        )
    if content.remark:
        lines += ["", content.remark]
    lines += [
        "",
        f"Tables as CSV: [step times]({link}step_times.csv), [search times]({link}search_times.csv)"
        f", [scaling]({link}scaling.csv), [anytime curves]({link}anytime.csv), "
        f"[growth]({link}growth.csv)"
        + (f", [compiled]({link}compiled.csv)." if content.compiled_wanted else "."),
    ]
    return "\n".join(lines)


def _findings(content: Content) -> list[str]:
    """The main findings of the page, in a few lines."""
    judged = [target for target in content.targets if target.met is not None]
    met = sum(target.met is True for target in judged)
    lines = []
    contests = contests_of(content.results)
    if contests:
        behind = [
            contest.behind
            for contest in contests
            if not contest.is_as_good and contest.ours.row["fits"]
        ]
        as_good = sum(contest.is_as_good for contest in contests)
        lines.append(
            f"`{OURS}`, our search, has the best plan, or an equally good one, for {as_good} of "
            f"{len(contests)} problems (a model on a machine)"
            + (f"; on the others its C(s) is up to {max(behind):.2%} higher." if behind else ".")
        )
    speedups = [
        rival.row["time_s"] / contest.ours.row["time_s"]
        for contest in contests
        for rival in contest.rivals
        if rival.method == "manual" and rival.row["fits"] and contest.ours.row["fits"]
    ]
    if speedups:
        lines.append(
            f"Its steps are predicted to be {min(speedups):.2f} to {max(speedups):.2f} times as "
            "fast as those of the best expert plan (`manual`), where that one fits."
        )
    if judged:
        lines.append(f"{met} of {len(judged)} targets are met ([which, and why not](#targets)).")
    return lines or ["Nothing was run yet."]


def _environments(rows: Sequence[Row]) -> list[str]:
    dates_by_environment: dict[str, list[str]] = {}
    for row in (row for row in rows if row.get("cpu")):
        versions = ", ".join(
            f"{package} {version}" for package, version in row.get("versions", {}).items()
        )
        environment = f"{row['cpu']}, {row['cores']} cores, Python {row['python']}, {versions}"
        dates_by_environment.setdefault(environment, []).append(row.get("date", ""))
    return [
        f"{environment}, {min(dates)}" + (f" to {max(dates)}" if min(dates) != max(dates) else "")
        for environment, dates in dates_by_environment.items()
    ]


def _targets(targets: Sequence[EvaluationTarget]) -> str:
    lines = [
        "## Targets",
        "",
        "The targets that were set before the evaluation ran.",
        "",
        *table(("target", "found"), [(target.text, f"**{target.verdict}**") for target in targets]),
    ]
    for target in targets:
        if target.numbers:
            lines += ["", f"{target.text[0].upper()}{target.text[1:]}: **{target.verdict}**.", ""]
            lines += [f"- {number}" for number in target.numbers]
        if target.reason:
            lines += ["", f"Why: {target.reason}."]
    return "\n".join(lines)


def _sizes(content: Content) -> str:
    rows = []
    for case in content.choice.cases:
        results = [
            result
            for result in content.results
            if result.part == "models" and result.case == case.name
        ]
        if results:
            row = results[0].row
            sizes = assignments_text(row["sizes"]) or "defaults"
            peaks = {
                result.machine: result.row["unsharded_peak_bytes"]
                for result in results
                if result.row.get("unsharded_peak_bytes")
            }
            unsharded_peaks = ", ".join(
                f"{machine} {bytes_text(size)}" for machine, size in peaks.items()
            )
            reason = "sizes of --quick" if content.choice.quick else REASONS[case.model]
            rows.append(
                (
                    case.name,
                    f"`{row['model']} {sizes}`",
                    row.get("ops", ""),
                    unsharded_peaks,
                    reason,
                )
            )
    return "\n".join(
        [
            "## Sizes, and why",
            "",
            "The paper gives neither batch sizes nor meshes, so these are ours. Batches are chosen "
            "so that memory decides: no device holds the unsharded program. The mesh is "
            f"{paper_cases.MESH} everywhere, {tables.devices(paper_cases.MESH)} devices: on TPU v3 "
            "a slice of 4x4 chips with two cores each, on GPUs four hosts of eight. Everything is "
            "float32. The program is a training step with Adam; for ITX it is a decoding step.",
            "",
            *table(("model", "sizes", ">ops", "unsharded peak", "why"), rows),
        ]
    )


def _methods(rows: Rows) -> list[str]:
    return list(dict.fromkeys(str(row["method"]) for row in rows))


def _step_times(content: Content, link: str) -> str:
    rows = _rows_of_part(content.steps, "models")
    methods = _methods(rows)
    lines = [
        (*problem, *_steps(by_method, methods)) for problem, by_method in _problems(rows).items()
    ]
    return "\n".join(
        [
            "## Step time (section 5.2)",
            "",
            f"![Step time by model, machine and method]({link}step_times.svg)",
            "",
            "Predicted milliseconds of one step with the best plan of each method, and the memory "
            "of a device in brackets. **Bold**: the best plan, or one within 0.1% of it. OOM: even "
            "the method's best plan exceeds the memory. `manual` is the best of the plans that "
            "experts use for the model, over all assignments of the mesh axes to their roles.",
            "",
            *table(("model", "machine", *(f">{method}" for method in methods)), lines),
        ]
    )


def _steps(by_method: Mapping[str, Row], methods: Sequence[str]) -> list[str]:
    """A table cell for each method."""
    fitting = [row["time_s"] for row in by_method.values() if row["outcome"] == "ok"]
    best = min(fitting, default=None)
    return [_step(by_method.get(method), best) for method in methods]


def _step(row: Row | None, best: float | None) -> str:
    if row is None:
        return ""
    if row.get("time_s") is None:
        return str(row["outcome"]).lower()
    cell = f"{row['time_s'] * 1e3:,.2f}"
    size = bytes_text(row["peak_bytes"])
    if row["outcome"] != "ok":
        return f"OOM ({cell}, {size})"
    if best is not None and row["time_s"] <= best * 1.001:
        cell = f"**{cell}**"
    return f"{cell} ({size})" + (" crashed" if row["status"] == "CRASHED" else "")


def _problems(rows: Rows) -> dict[tuple[str, str], dict[str, Row]]:
    """Rows by method, for each case on each machine."""
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["case"], row["machine"]), {})[row["method"]] = row
    return groups


def _search_times(content: Content, link: str) -> str:
    rows = _rows_of_part(content.searches, "models")
    methods = _methods(rows)
    lines = [
        (*problem, *(_seconds(by_method.get(method)) for method in methods))
        for problem, by_method in _problems(rows).items()
    ]
    longer = ", ".join(
        f"{method} on {model} ({factor:g} times as long)"
        for (method, model), factor in paper_cases.BUDGET_FACTORS.items()
    )
    return "\n".join(
        [
            "## Search time (section 5.3)",
            "",
            f"![Search time by model, machine and method]({link}search_times.svg)",
            "",
            "Seconds until the method had its own best plan / until it was within 1% of the best "
            "plan of any method (–: never) / until it ended. Allowed more time than the others: "
            f"{longer}.",
            "",
            *table(("model", "machine", *(f">{method}" for method in methods)), lines),
            "",
            f"![Best score so far over search time]({link}anytime.svg)",
        ]
    )


def _seconds(row: Row | None) -> str:
    if row is None:
        return ""
    cells = (row.get("own_best_s"), row.get("close_s"), row.get("elapsed_s"))
    return " / ".join("–" if seconds is None else f"{seconds:.2f}" for seconds in cells)


def _scaling(content: Content, link: str) -> str:
    steps, searches = (
        _rows_of_part(content.steps, "scaling"),
        _rows_of_part(content.searches, "scaling"),
    )
    methods = _methods(steps)
    lines = []
    for (case, _), by_method in _problems(steps).items():
        search_by_method = {row["method"]: row for row in searches if row["case"] == case}
        devices = next(iter(by_method.values()))["devices"]
        seconds = [_seconds(search_by_method.get(method)) for method in methods]
        lines.append((case, devices, *_steps(by_method, methods), *seconds))
    return "\n".join(
        [
            "## Scaling devices and sequence length (section 5.4)",
            "",
            f"![Step and search time against devices]({link}scaling.svg)",
            "",
            f"T2B on {paper_cases.SCALING_MACHINE} with batch 8 and the model's own remat, on "
            "meshes data x seq x model. Positions and the devices of the axis `seq` double "
            "together, so that every shard has 1024 positions. First predicted step times in ms "
            "(memory), then search times in s (own best / within 1% / whole search).",
            "",
            *table(
                (
                    "mesh, positions",
                    ">devices",
                    *(f">{method}" for method in methods),
                    *(f">{method}, s" for method in methods),
                ),
                lines,
            ),
        ]
    )


def _growth(content: Content, link: str) -> str:
    lines = []
    columns = ("load_s", "analyse_s", "own_best_s", "elapsed_s")
    for part, against in (("depth", "layers"), ("devices", "devices")):
        for result in (result for result in content.results if result.part == part):
            row = result.row
            timed = row.get("elapsed_s") is not None
            lines.append(
                (
                    against,
                    f"{result.x:g}",
                    row["mesh"],
                    row.get("ops", ""),
                    *(f"{row.get(column) or 0:.2f}" if timed else "–" for column in columns),
                    row.get("evaluations") or "–",
                    row["status"].lower(),
                )
            )
    if not lines:
        return ""
    return "\n".join(
        [
            "## Search time against layers and devices",
            "",
            f"![Search time against layers and devices]({link}growth.svg)",
            "",
            f"`{OURS}` on the T2B training step on {paper_cases.LARGE_MACHINE}, restricted to the "
            "tree search over colour actions, as in the paper (`refine=0`), because refinement and "
            "integer programs use all the time that they are given. The rows by layers have "
            "sequence 2048 and batch 16, those by devices sequence 4096, batch 256 and the model's "
            "own remat. In seconds: *load* is tracing and reading, *search* the whole search, "
            "which ended by itself where the status is converged.",
            "",
            *table(
                (
                    "against",
                    ">number",
                    "mesh",
                    ">ops",
                    ">load",
                    ">analyse",
                    ">own best",
                    ">search",
                    ">priced",
                    "status",
                ),
                lines,
            ),
        ]
    )


def _small(content: Content) -> str:
    groups = {
        key: results
        for key, results in tables.problems(content.results).items()
        if key[0] == "goals" and len({result.seed for result in results}) > 1
    }
    lines = []
    for (_, case, _), group in groups.items():
        seeds = [result for result in group if result.method == OURS and result.has_plan]
        proof = next(
            (result for result in group if result.method == "exhaustive" and result.has_plan), None
        )
        if not seeds or proof is None:
            continue
        scores = [result.row["score"] for result in seeds]
        lines.append(
            (
                case,
                f"{proof.row['score']:.6f}",
                proof.row["status"].lower(),
                proof.row["evaluations"],
                len(seeds),
                f"{min(scores):.6f}",
                f"{max(scores):.6f}",
                f"{max(result.row['own_best_s'] for result in seeds):.3f}",
            )
        )
    if not lines:
        return ""
    columns = (
        "program",
        ">exhaustive, C(s)",
        "it ended",
        ">priced",
        ">seeds",
        ">best",
        ">worst",
        ">slowest own best, s",
    )
    intro = (
        "Where `exhaustive` runs to its end (complete), it has proven that no sequence of colour "
        f"actions has a lower C(s). Refinement leaves that space, so `{OURS}` may end below. "
        "*Best* and *worst* are over its seeds."
    )
    return "\n".join(
        ["## Small programs, against the proven optimum", "", intro, "", *table(columns, lines)]
    )


def _compiled(content: Content, target: Path) -> str:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in content.compiled:
        groups.setdefault((row["case"], row["topology"]), []).append(row)
    lines = [
        (
            *problem,
            sum(not row.get("error") for row in rows),
            sum(not row.get("compiled_fits", True) for row in rows),
            _range(_ratio(row, "compiled_peak_bytes", "peak_bytes") for row in rows),
            _range(_ratio(row, "compiled_compute_s", "compute_s") for row in rows),
            _range(_bytes_ratio(row) for row in rows),
        )
        for problem, rows in groups.items()
    ]
    missing = content.compiled_wanted - len(content.compiled)
    has_accuracy = (target.parent / "accuracy.md").exists()
    accuracy = "[accuracy](accuracy.md)" if has_accuracy else "docs/accuracy.md"
    sizes_by_case = {row["case"]: row["sizes"] for row in content.compiled}
    sizes_text = "; ".join(f"{case}: `{sizes}`" for case, sizes in sizes_by_case.items())
    missing_text = f" {missing} of {content.compiled_wanted} are still missing."
    return "\n".join(
        [
            "## Compiled ahead of time",
            "",
            "Do the predictions hold in a compiler? libtpu compiled the best plan of each method "
            "for TPU slices that were not attached. **These are reduced programs**, since it "
            "needs minutes to hours for whole ones; each method searched the reduced program "
            f"again. Sizes: {sizes_text or 'none yet'}.{missing_text if missing else ''}",
            "",
            "The table gives the ratio of compiled to predicted values, lowest to highest over the "
            "plans of a program on a slice; `compiled.csv` lists the plans one by one. Memory is "
            "that of one device. Computing is the compiler's estimate of cycles over the clock of "
            "the cores; it has none for collectives, gathers and scatters. Where ratios of "
            f"computing lie far apart, the cost model may rank plans wrongly. {accuracy} "
            "explains what the compiler does differently.",
            "",
            *table(
                (
                    "model",
                    "slice",
                    ">plans compiled",
                    ">of these refused",
                    ">memory",
                    ">computing",
                    ">bytes of collectives",
                ),
                lines,
            ),
        ]
    )


def _range(ratios: Iterable[float | None]) -> str:
    known_ratios = [ratio for ratio in ratios if ratio is not None]
    return f"{min(known_ratios):.2f} to {max(known_ratios):.2f}" if known_ratios else "–"


def _ratio(row: Row, compiled: str, predicted: str) -> float | None:
    """A number of a compiled plan over the predicted one; None where either is missing."""
    if not row.get(compiled) or not row.get(predicted):
        return None
    return float(row[compiled] / row[predicted])


def _bytes_ratio(row: Row) -> float | None:
    """Compiled over predicted bytes of the collectives of a step; None if none are predicted."""
    pairs = list(json.loads(row.get("bytes_by_kind") or "{}").values())
    predicted, compiled = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return compiled / predicted if predicted else None


def _comparison_with_paper() -> str:
    return "\n".join(
        [
            "## How it compares with the paper",
            "",
            "Compare methods with each other here, and not with the paper's figures. The paper's "
            "step times are measured on devices, ours are predicted. Its Alpa and AutoMap are the "
            "published programs, which propagate and price in their own ways; here every method is "
            "reimplemented on one analysis and one cost model, so that only the searches differ. "
            "The docstring of each method in `toast_lab/search` says what its published form has "
            "that ours lacks.",
        ]
    )
