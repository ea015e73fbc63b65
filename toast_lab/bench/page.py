"""The evaluation as a page in Markdown, written from tables; every number on it is computed.

Start reading at ``page``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from toast_lab.bench import cases, tables
from toast_lab.bench.cases import OURS, Choice
from toast_lab.bench.tables import CaseResult, Row
from toast_lab.bench.targets import EvaluationTarget
from toast_lab.sweep.table import assignments_text
from toast_lab.text import bytes_text

Rows = Sequence[Row]


class Content(NamedTuple):
    """What a page is written from."""

    choice: Choice
    command: str
    results: list[CaseResult]
    wanted: int  #: searches of the choice; those without a row are missing
    steps: Rows
    searches: Rows
    compiled: Rows
    compiled_wanted: int  #: 0: nothing was to be compiled
    targets: Sequence[EvaluationTarget]


def page(content: Content, folder: Path, target: Path) -> str:
    """The page at ``target``, with links to the tables and charts in ``folder``."""
    link = os.path.relpath(folder, target.parent)
    link = "" if link == "." else Path(link).as_posix() + "/"
    parts = [_head(content, link), _targets(content.targets)]
    if _of(content.steps, "models"):
        parts += [_sizes(content), _step_times(content, link), _search_times(content, link)]
    if _of(content.steps, "scaling"):
        parts.append(_scaling(content, link))
    parts += [_growth(content, link), _small(content)]
    if content.compiled_wanted:
        parts.append(_compiled(content, target))
    parts.append(_reading())
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; columns that start with ">" are numbers, set to the right."""
    head = "| " + " | ".join(column.lstrip(">") for column in columns) + " |"
    rule = "|" + "|".join("--:" if column.startswith(">") else "---" for column in columns) + "|"
    return "\n".join(
        [head, rule, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)]
    )


def _of(rows: Rows, part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def _head(content: Content, link: str) -> str:
    rows = [result.row for result in content.results]
    missing = content.wanted - len(rows)
    lacking = (
        f"; {missing} of its {content.wanted} are still missing, the same command goes on with them"
    )
    lines = [
        "# The paper's evaluation, rerun",
        "",
        f"`{content.command}` made this page from {len(rows)} searches{lacking if missing else ''}."
        " Each search ran in a process of its own, one after the other, for at most "
        f"{content.choice.seconds:g} s where a table says nothing else.",
    ]
    if content.choice.quick:
        lines += [
            "",
            "**These are small sizes to try the command out (`--quick`). The numbers mean "
            "nothing.**",
        ]
    lines += ["", f"Made on: {'; '.join(_places(rows)) or 'nothing yet'}."]
    codes = {str(row.get("code")) for row in rows if row.get("code")}
    if len(codes) > 1:
        lines.append(
            f"Rows come from {len(codes)} versions of the code ({', '.join(sorted(codes))}): "
            "remove the rows' file to make them all with one."
        )
    lines += [
        "",
        "Times and memory of plans are predictions of one cost model, the same for all methods, "
        "not measurements. Search times are seconds of the wall clock from the analysed program "
        "in a warm process: tracing, analysis and loading compiled kernels are not in them, and "
        "are in the tables.",
        "",
        f"Tables: [step times]({link}step_times.csv), [search times]({link}search_times.csv), "
        f"[scaling]({link}scaling.csv), [anytime curves]({link}anytime.csv), "
        f"[growth]({link}growth.csv)"
        + (f", [compiled]({link}compiled.csv)." if content.compiled_wanted else "."),
    ]
    return "\n".join(lines)


def _places(rows: Sequence[Row]) -> list[str]:
    places: dict[str, list[str]] = {}
    for row in (row for row in rows if row.get("cpu")):
        versions = ", ".join(
            f"{package} {version}" for package, version in row.get("versions", {}).items()
        )
        place = f"{row['cpu']}, {row['cores']} cores, Python {row['python']}, {versions}"
        places.setdefault(place, []).append(row.get("date", ""))
    return [
        f"{place}, {min(dates)}" + (f" to {max(dates)}" if min(dates) != max(dates) else "")
        for place, dates in places.items()
    ]


def _targets(targets: Sequence[EvaluationTarget]) -> str:
    lines = [
        "## Targets",
        "",
        markdown(
            ("target", "found"), [(target.text, f"**{target.verdict}**") for target in targets]
        ),
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
            whole = ", ".join(f"{machine} {bytes_text(size)}" for machine, size in peaks.items())
            reason = "sizes of --quick" if content.choice.quick else case.why
            rows.append((case.name, f"`{row['model']} {sizes}`", row.get("ops", ""), whole, reason))
    return "\n".join(
        [
            "## Sizes, and why",
            "",
            "The paper gives neither batch sizes nor meshes. All machines get the mesh "
            f"{cases.MESH} of {tables.devices(cases.MESH)} devices: a TPU v3 slice of 4x4 chips "
            "with two cores each, four hosts of eight GPUs. Everything is float32, and models are "
            "trained with Adam, but ITX, which decodes.",
            "",
            markdown(("model", "sizes", ">ops", "unsharded peak", "why"), rows),
        ]
    )


def _methods(rows: Rows) -> list[str]:
    return list(dict.fromkeys(str(row["method"]) for row in rows))


def _step_times(content: Content, link: str) -> str:
    rows = _of(content.steps, "models")
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
            "Predicted milliseconds of one step with the best plan of each method, its memory on "
            "a device in brackets. **Bold**: the best, or within 0.1% of it. OOM: even the best "
            "plan exceeds the device's memory.",
            "",
            markdown(("model", "machine", *(f">{method}" for method in methods)), lines),
        ]
    )


def _steps(by_method: Mapping[str, Row], methods: Sequence[str]) -> list[str]:
    """A cell for each method."""
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
    """Rows by method, of each case on each machine."""
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["case"], row["machine"]), {})[row["method"]] = row
    return groups


def _search_times(content: Content, link: str) -> str:
    rows = _of(content.searches, "models")
    methods = _methods(rows)
    lines = [
        (*problem, *(_seconds(by_method.get(method)) for method in methods))
        for problem, by_method in _problems(rows).items()
    ]
    longer = ", ".join(
        f"{method} on {model} {factor:g} times" for (method, model), factor in cases.LONGER.items()
    )
    return "\n".join(
        [
            "## Search time (section 5.3)",
            "",
            f"![Search time by model, machine and method]({link}search_times.svg)",
            "",
            "Seconds to the method's own best plan / to within 1% of the best plan of any method "
            f"(–: never) / in all. Longer than the others may run: {longer}.",
            "",
            markdown(("model", "machine", *(f">{method}" for method in methods)), lines),
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
    steps, searches = _of(content.steps, "scaling"), _of(content.searches, "scaling")
    methods = _methods(steps)
    lines = []
    for (case, _), by_method in _problems(steps).items():
        timed = {row["method"]: row for row in searches if row["case"] == case}
        devices = next(iter(by_method.values()))["devices"]
        seconds = [_seconds(timed.get(method)) for method in methods]
        lines.append((case, devices, *_steps(by_method, methods), *seconds))
    return "\n".join(
        [
            "## Scaling devices and sequence length (section 5.4)",
            "",
            f"![Step and search time against devices]({link}scaling.svg)",
            "",
            f"T2B on {cases.SCALING_MACHINE}, mesh Batch x Seq x Model, batch 8, the model's own "
            "remat: positions and devices of the axis `seq` double together, so every shard has "
            "1024 positions. Step time in ms (memory), then search time in s (own best / within "
            "1% / in all).",
            "",
            markdown(
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
            f"`{OURS}` on the T2B training step, {cases.LARGE_MACHINE}. Layers: sequence 2048, "
            "batch 16. Devices: sequence 4096, batch 256, the model's own remat. The tree search "
            "alone, over colour actions as in the paper (`refine=0`): refinement and integer "
            "programs use whatever time there is. Seconds; *load* is tracing and reading, "
            "*search* the whole search, which ends by itself where the status is converged.",
            "",
            markdown(
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
    head = (
        "program",
        ">exhaustive C(s)",
        "it ended",
        ">priced",
        ">seeds",
        ">best",
        ">worst",
        ">slowest own best, s",
    )
    return "\n".join(["## Small programs, against the optimum", "", markdown(head, lines)])


def _compiled(content: Content, target: Path) -> str:
    lines = []
    for row in content.compiled:
        plan = (row["case"], row["topology"], row["method"])
        if row.get("error"):
            lines.append((*plan, *[""] * 7, str(row["error"])[:80].replace("|", "/")))
            continue
        need = row.get("compiled_peak_bytes")
        lines.append(
            (
                *plan,
                bytes_text(row["peak_bytes"]) + ("" if row["fits"] else " OOM"),
                ("–" if need is None else bytes_text(need))
                + ("" if row["compiled_fits"] else " refused"),
                f"{row['compute_s'] * 1e3:.2f}",
                _ms(row.get("compiled_compute_s")),
                f"{row['comm_s'] * 1e3:.2f}",
                _kinds(row.get("collectives")),
                _kinds(row.get("compiled_collectives")),
                _bytes_both(row.get("bytes_by_kind")),
            )
        )
    missing = content.compiled_wanted - len(content.compiled)
    has_accuracy = (target.parent / "accuracy.md").exists()
    accuracy = "[accuracy](accuracy.md)" if has_accuracy else "docs/accuracy.md"
    sizes_by_case = {row["case"]: row["sizes"] for row in content.compiled}
    sizes_text = "; ".join(f"{case}: `{sizes}`" for case, sizes in sizes_by_case.items())
    lacking = f" {missing} of {content.compiled_wanted} are still missing."
    return "\n".join(
        [
            "## Compiled ahead of time",
            "",
            "The best plan of each method, compiled by libtpu for slices that were not there. "
            "**These are reduced programs**, since a compiler takes minutes to hours for whole "
            "ones, and each method searched the reduced program again: "
            f"{sizes_text or 'none yet'}.{lacking if missing else ''}",
            "",
            "Memory of one device; *compiled* compute is the compiler's own estimate in cycles "
            "over the clock of the cores (it makes none for collectives, gathers and scatters). "
            "Collectives are counts by kind (ag all_gather, ar all_reduce, rs reduce_scatter, a2a "
            "all_to_all, cp collective_permute); bytes are predicted / compiled, all kinds "
            f"together. What compilers do otherwise, and why: {accuracy}.",
            "",
            "Compiled compute over predicted, lowest to highest: "
            f"{_compute_ratios(content.compiled)}. A model whose ratios lie far apart is one "
            "whose methods the cost model may rank wrongly.",
            "",
            markdown(
                (
                    "model",
                    "slice",
                    "method",
                    ">memory",
                    ">compiled",
                    ">compute ms",
                    ">compiled ms",
                    ">collectives ms",
                    "collectives",
                    "compiled",
                    ">bytes",
                ),
                lines,
            ),
        ]
    )


def _compute_ratios(rows: Rows) -> str:
    """Per model the range of compiled compute over predicted."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row.get("compiled_compute_s") and row.get("compute_s"):
            ratios.setdefault(row["case"], []).append(row["compiled_compute_s"] / row["compute_s"])
    ranges = [
        f"{case} {min(of_case):.2f} to {max(of_case):.2f}" for case, of_case in ratios.items()
    ]
    return ", ".join(ranges) or "none yet"


_SHORT = {
    "all_gather": "ag",
    "all_reduce": "ar",
    "reduce_scatter": "rs",
    "all_to_all": "a2a",
    "collective_permute": "cp",
    "permute": "cp",
}


def _kinds(counts_json: str | None) -> str:
    counts = sorted(json.loads(counts_json or "{}").items())
    return ", ".join(f"{count:g} {_SHORT.get(kind, kind)}" for kind, count in counts) or "none"


def _bytes_both(bytes_json: str | None) -> str:
    pairs = json.loads(bytes_json or "{}").values()
    return " / ".join(bytes_text(sum(sizes)) for sizes in zip(*pairs, strict=True)) or "–"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.2f}"


def _reading() -> str:
    return "\n".join(
        [
            "## How it compares with the paper",
            "",
            "The paper's Alpa and AutoMap are other programs, which propagate and price in their "
            "own ways; here every method is written anew on one analysis, one cost model and one "
            "machine, so that plans and search times can be compared. What the published form of "
            "each has that ours lacks stands in its module (`toast_lab/search`). The paper's step "
            "times are measured on devices and ours are predicted, so they compare among methods "
            "and not with the paper's figures.",
        ]
    )
