"""The source code of a program, with the selected lines marked.

A click on a line selects what it computes.
"""

from __future__ import annotations

from toast_lab.app import look
from toast_lab.app.listing_pane import listing_pane
from toast_lab.app.session import Session
from toast_lab.conflicts.analysis import Analysis
from toast_lab.ir import source_lines
from toast_lab.views.markup import h
from toast_lab.views.program_table import Segment

#: colour of the number of a line that has ops; the count of its ops on the right has it, too
OPS = "var(--tl-code, #9a4b00)"


class SourcePane(look.Pane):
    """One file at a time: the one that the selection comes from."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.lines = listing_pane(kind="source")
        look.watch_value(self.lines, self._picked, "picked")
        self._title = look.text()
        self._file = ""
        self._analysis: Analysis | None = None
        self._ops: dict[str, dict[int, list[int]]] = {}
        self.view = look.filled_column(self._title, self.lines)
        look.watch(session.loaded, self.refresh, "analysis")
        look.watch(session.selection, self.refresh, "names", "conflicts")
        self.refresh()

    @property
    def file(self) -> str:
        """The file that is shown."""
        return self._file

    def refresh(self) -> None:
        """Show the file of the selected op, and mark the lines of all that are selected."""
        session, analysis = self.session, self.session.loaded.analysis
        if analysis is None:
            return
        if analysis is not self._analysis:
            self._analysis, self._file = analysis, ""
            self._ops = source_lines.ops_of_lines(analysis.program)
        ops = session.selection.ops
        frames = [
            frame
            for frame in (source_lines.op_frame(analysis.program, op) for op in ops)
            if frame.file
        ]

        file = frames[0].file if frames else self._file or self._first()
        if file != self._file:
            self._show(file)
        self.lines.chosen = sorted({frame.line for frame in frames if frame.file == self._file})

    def _first(self) -> str:
        """The file with the most ops."""
        return max(self._ops, key=lambda file: sum(map(len, self._ops[file].values())), default="")

    def _show(self, file: str) -> None:
        self._file = file
        source, ops = source_lines.file_lines(file), self._ops.get(file, {})
        if not source:
            message = (
                f"{file or 'The source'} cannot be read here; the listing says which line an op "
                "comes from."
            )
            self._title.object = h("p", message, cls="quiet one")
        else:
            self._title.object = h(
                "p", h("b", file), f"  {sum(map(len, ops.values())):,} ops", cls="quiet one"
            )
        lines = []
        for line_number, line in enumerate(source, 1):
            op_count = len(ops.get(line_number, ()))
            count_text = f"{op_count} op{'s' if op_count > 1 else ''}" if op_count else ""
            lines.append(
                (
                    line_number,
                    (Segment(f"{line_number:>5}  ", OPS if op_count else ""), Segment(line)),
                    count_text,
                )
            )
        self.lines.put(lines)

    def _picked(self, picked: list[int]) -> None:
        analysis = self.session.loaded.analysis
        if analysis is None or not picked:
            return
        ops = self._ops.get(self._file, {}).get(picked[0], [])
        names = [name for op in ops for name in analysis.program.factors(op)]
        if names:
            self.session.selection.select(tuple(dict.fromkeys(names)))
