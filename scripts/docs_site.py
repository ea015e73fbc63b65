"""Hooks of MkDocs: they make pages from files outside ``docs/``, and the links to these pages.

``mkdocs.yml`` names this file. Notebooks, README.md, the code map, CONTRIBUTING.md and CHANGELOG.md
become pages of the site; the reference has every public name of ``toast_lab``.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

#: page of the site by file of the repository, for files outside ``docs/``
BORROWED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "toast_lab/README.md": "code.md",
    "README.md": "index.md",
    **{
        path.relative_to(ROOT).as_posix(): f"tutorials/{path.stem}.md"
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    },
}

#: public names on each page of the reference
REFERENCE = {
    "Models": [
        "from_jax",
        "from_torch",
        "from_stablehlo",
        "load",
        "kernel_rule",
        "annotations",
        "Model",
        "Program",
    ],
    "Analysis": ["analyse", "Analysis", "coverage", "conflicts", "roles"],
    "Prices": ["Problem", "Mesh", "Machine", "price", "price_rules", "replicated", "Cost"],
    "Search": [
        "search",
        "advise",
        "Advice",
        "usual_plans",
        "Budget",
        "SearchResult",
        "Judging",
        "ConfirmedResult",
        "Status",
        "start_search",
        "race",
        "start_race",
        "Race",
        "bound",
        "LowerBound",
    ],
    "Plans": [
        *("Plan", "listing", "annotate", "plan_words", "needed_constraints"),
        *("choices", "why", "why_not", "check", "diff", "report"),
        *("padded", "padding_prices", "padded_arguments", "cut_results"),
        *("audit", "Audit"),
    ],
    "Execution": [
        "run",
        "compile",
        "Compiled",
        "diff_compiled",
        "compare",
        "Comparison",
        "replay",
    ],
    "Explorer": ["explore", "views", "charts"],
    "Errors": ["ToastError"],
}
#: functions that the docstrings on a page refer to
ALSO = {
    "Plans": [
        "toast_lab.sharding.plan.plan_of_actions",
        "toast_lab.sharding.plan.plan_of_specs",
        "toast_lab.apply.jit.jit",
    ],
}
#: names that are documented as a whole module
MODULES = {
    "views": "toast_lab.app.cells",
    "charts": "toast_lab.charts",
    "ToastError": "toast_lab.errors",
}

#: placed below the picture of a graph in a tutorial
INTERACTIVE = """<iframe class="interactive" loading="lazy" src="{name}#conflicts"
title="{title}: its dimension graph, to zoom and select"
style="width: 100%; height: 640px; border: 1px solid #8888"></iframe>

[Open it on a page of its own]({name}): zoom the graph, select a marker, a conflict or a line."""

#: script that the plugin `offline` loads into each page, and our replacement
FETCHED_WORKER = "https://unpkg.com/iframe-worker/shim"
WORKER = "assets/file_worker.js"

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)


def public_names() -> dict[str, str]:
    """The public names, each with its ``module.name``, read from the source without an import."""
    tree = ast.parse((ROOT / "toast_lab" / "__init__.py").read_text())
    (table,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES"
    ]
    return {name: place.replace(":", ".") for name, place in ast.literal_eval(table).items()}


def reference_page(title: str) -> str:
    """A page of the reference: each name with its signature and docstring."""
    places = public_names()
    parts = [f"# {title}\n"]
    for name in REFERENCE[title]:
        place = MODULES.get(name) or places[name]
        heading = "errors" if title == "Errors" else f"tl.{name}"
        options = [f"    heading: {heading}", f"    toc_label: {heading}"]
        if name in MODULES:
            options.append("    show_if_no_docstring: true")
        if name == "Plan":
            options.append("    inherited_members: true")
        parts.append("\n".join([f"::: {place}", "    options:", *["  " + row for row in options]]))
    parts += [f"::: {place}" for place in ALSO.get(title, ())]
    return "\n\n".join(parts) + "\n"


def report_page(wanted: dict[str, Any]) -> bytes:
    """A report on a built-in model, as the metadata of a cell describes it.

    The metadata has the model's name and sizes, the axes of the mesh, and the actions of the plan.
    """
    import toast_lab as tl

    model = tl.load(wanted["model"], **wanted["sizes"])
    problem = tl.Problem(tl.analyse(model), wanted["mesh"], "tpu-v5e")
    plan = tl.Plan.from_actions(problem, wanted["actions"])
    return tl.report(problem, {"this plan": plan}, kept=False).html.encode()


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures and reports by file name.

    A graph that needs a kernel to be interactive is shown inside a report, which needs none.
    """
    notebook = json.loads(path.read_text())
    parts, files = [], {}
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell.get("outputs", [])):
            content = output.get("data", {})
            if "image/png" in content:
                name = f"{path.stem}-{number}-{place}.png"
                files[name] = base64.b64decode("".join(content["image/png"]))
                about = "".join(content.get("text/plain", "output")).replace("\n", " ")
                parts.append(f"![{re.sub(r'[][<>]', ' ', about)[:120]}]({name})")
            else:
                text = "".join(output.get("text", content.get("text/plain", "")))
                parts.append(f"```text\n{text.rstrip()}\n```")
        if wanted := cell["metadata"].get("report"):
            name = f"{path.stem}-{number}-report.html"
            files[name] = report_page(wanted)
            parts.append(INTERACTIVE.format(name=name, title=wanted["model"]))
    return "\n\n".join(parts) + "\n", files


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from other files."""
    from mkdocs.structure.files import File

    def add(page: str, content: str | bytes) -> None:
        files.append(File.generated(config, page, content=content))

    for source, page in BORROWED.items():
        if source.endswith(".ipynb"):
            text, beside = notebook_page(ROOT / source)
            for name, content in beside.items():
                add(f"tutorials/{name}", content)
        else:
            text = (ROOT / source).read_text()
        add(page, text)
    for title in REFERENCE:
        add(f"reference/{title.lower()}.md", reference_page(title))
    add(WORKER, (ROOT / "scripts" / "file_worker.js").read_text())
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Replace the script that makes the search work from the disk, which the theme would fetch."""
    return output.replace(FETCHED_WORKER, "../" * page.file.dest_uri.count("/") + WORKER)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Do the same for pages that are not made from a document, such as 404.html."""
    return output_content.replace(FETCHED_WORKER, f"/{WORKER}")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    place = page.file.src_uri
    origin = next((source for source, borrowed in BORROWED.items() if borrowed == place), None)
    source = origin or f"docs/{place}"

    def moved(match: re.Match[str]) -> str:
        bang, text, target, anchor = match.groups()
        if not target or "://" in target or target.startswith("mailto:"):
            return match.group()
        where = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if origin and (origin.endswith(".ipynb") and bang):
            return match.group()  # a picture of the notebook itself
        to = BORROWED.get(where)
        if to is None and where.startswith("docs/"):
            to = where.removeprefix("docs/")
        if to is None:
            return text  # the file is not a page of the site, such as a test
        link = os.path.relpath(to, os.path.dirname(place) or ".")
        return f"{bang}[{text}]({link}{anchor or ''})"

    pieces = FENCE.split(markdown)
    return "".join(piece if piece.startswith("```") else LINK.sub(moved, piece) for piece in pieces)
