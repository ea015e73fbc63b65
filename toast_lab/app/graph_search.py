"""Search on the graph page: plain text or a regular expression, off the page's thread."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from toast_lab.conflicts.analysis import Analysis
from toast_lab.errors import RunFailed, ToastError
from toast_lab.isolate import run_in_child
from toast_lab.views.graph_rows import op_label, op_scopes
from toast_lab.views.patterns import containing, matching

PATTERN_LIMIT_S = 5.0
SEARCH_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="find")
FEW_OPS = 2000  #: ops; in a program with no more, plain text is searched for at once


def texts(analysis: Analysis) -> tuple[list[str], list[str]]:
    """(line, kind and function of every op, text of every name)."""
    scope = op_scopes(analysis)
    program = analysis.program
    return (
        [
            f"{op_label(analysis, op)}  {program.kind[op]}  {scope[op]}"
            for op in range(program.n_ops)
        ],
        list(analysis.name_text),
    )


def find(analysis: Analysis, pattern: str, *, regex: bool) -> tuple[int, ...]:
    """Names that match, or whose op does, in program order.

    Raises ToastError for a pattern that is wrong or takes too long.
    """
    ops, names = texts(analysis)
    if regex:
        matching(pattern, [])  # a wrong pattern is reported at once
        try:
            hits = run_in_child(
                "toast_lab.views.patterns:matching",
                pattern,
                ops + names,
                time_limit_s=PATTERN_LIMIT_S,
                activity="searching",
            )
        except RunFailed:
            raise ToastError(
                f"{pattern!r} took longer than {PATTERN_LIMIT_S:g} s. Nested repetitions are slow: "
                "rewrite the pattern without them, or search for plain text."
            ) from None
    else:
        hits = containing(pattern, ops + names)
    program = analysis.program
    matched_names = dict.fromkeys(hit - len(ops) for hit in hits if hit >= len(ops))
    for op in (hit for hit in hits if hit < len(ops)):
        matched_names.update(dict.fromkeys(program.factors(op)))
    return tuple(
        sorted(name for name in matched_names if analysis.names.size[name] > 1)
        or sorted(matched_names)
    )


def start(analysis: Analysis, pattern: str, *, regex: bool) -> Future[tuple[int, ...]]:
    """Run ``find`` in a thread; plain text in a small program is searched for at once."""
    if not regex and analysis.program.n_ops <= FEW_OPS:
        done: Future[tuple[int, ...]] = Future()
        done.set_result(find(analysis, pattern, regex=False))
        return done
    return SEARCH_THREADS.submit(find, analysis, pattern, regex=regex)
