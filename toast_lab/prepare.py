"""Compiles the kernels of a search ahead of it: on all cores, and once on a machine.

``prepare("price", "mcts")`` returns when all kernels of these needs are loaded. Kernels that were
never compiled on this machine are compiled by a crew of child processes, which write them to disk;
the caller is told how many are ready. The crew then continues with the kernels of all other needs,
at low priority, until it is done or this process ends. ``start_early`` starts a crew and does not
wait: while a model is traced, most cores are idle.

If children cannot run or nothing can be written to disk, kernels are compiled in this process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import hashlib
import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from toast_lab import isolate, kernel_files

#: Modules whose kernels are needed to price plans, for each search method, and for later parts of a
#: search.
KERNEL_NEEDS = {
    "price": (
        "cost.reprice",
        "cost.fold",
        "cost.kernel",
        "cost.price_codes",
        "cost.lifetimes",
        "cost.live_ranges",
        "sharding.state",
        "sharding.steps",
        "conflicts.dimension_graph",
    ),
    "mcts": (
        "search.mcts.selection",
        "search.mcts.rollout",
        "search.mcts.backup",
        "search.mcts.tree",
    ),
    "refine": ("search.mcts.refine", "search.terms.op_prices", "cost.moving_prices"),
    "alpa": ("search.terms.op_prices", "cost.moving_prices"),
    "automap": ("search.automap", "sharding.propagate"),
    "bound": (
        "search.gap.dual_ascent",
        "search.terms.op_prices",
        "cost.moving_prices",
    ),
    "written": ("written.propagation_kernel", "sharding.split_ops"),
    "exhaustive": (
        "search.exhaustive",
        "search.gap.state_bound",
        "search.gap.dual_ascent",
        "search.terms.op_prices",
        "cost.moving_prices",
    ),
}
FIRST_SEARCH_NEEDS = ("price", "mcts", "refine")  #: the needs of a first search
#: Kernels that others call, and that are needed first, are compiled first, so that all cores finish
#: at about the same time.
_ORDER = (
    "collective_time_s",
    "lower_into",
    "price_steps",
    "kept_layouts_into",
    "live_bytes",
    "wanted_layouts",
    "reprice",
    "apply_move",
    "legal_pairs",
    "_earlier_sets",
    "needed_ops",
    "_hash_rows",
    "_take_rows",
    "clocks",
    "has_path",
    "natural_layouts",
    "select",
    "evaluate",
    "back_up",
    "anneal",
    "_fill_one",
    "use_costs",
)
_POLL_INTERVAL_S = 0.05
_MOST_CHILDREN = 8

Listener = Callable[[int, int], None]

_ready: set[str] = set()
_lock = threading.Lock()
_crew: list[subprocess.Popen[bytes]] = []


def progress_text(done: int, total: int) -> str:
    """A line about the progress, for users.

    >>> progress_text(9, 24)
    'preparing kernels, once on this machine: 9 of 24'
    """
    return f"preparing kernels, once on this machine: {done} of {total}"


def prepare(
    *needs: str, listener: Listener | None = None, cancel: Callable[[], bool] | None = None
) -> None:
    """Load all kernels of ``needs``, or compile them.

    Args:
        needs: keys of ``KERNEL_NEEDS``; others, as of methods without kernels, are ignored.
        listener: called with (number of kernels ready, number of kernels) if some have to be
            compiled; by default a line is shown.
        cancel: polled; True ends the wait, but not the crew.

    Raises:
        Cancelled: ``cancel`` ended the wait.
    """
    missing_needs = [
        need for need in dict.fromkeys(needs) if need in KERNEL_NEEDS and need not in _ready
    ]
    if not missing_needs:
        return
    from toast_lab import kernels

    with _lock:
        names = _names(missing_needs)
        missing = [name for name in names if not kernels.load(kernels.KERNELS[name])]
        if missing:
            with _progress_shown(listener) as tell:
                _compile(
                    missing_needs=missing_needs,
                    missing=missing,
                    total=len(names),
                    tell=tell,
                    cancel=cancel,
                )
        _ready.update(missing_needs)


def load_present() -> None:
    """Load those kernels of a first search that are on disk; compiles nothing, does not wait."""
    from toast_lab import kernels

    with _lock:
        for need in FIRST_SEARCH_NEEDS:
            if need not in _ready:
                names = _names([need])
                if all([kernels.load(kernels.KERNELS[name]) for name in names]):
                    _ready.add(need)


def start_early(*needs: str) -> None:
    """Start a crew that compiles the missing kernels of ``needs``, and then all others.

    ``needs`` default to those of a first search. Does not wait.
    """
    if isolate.in_child() or _stamp().exists():
        return
    with _lock:
        _muster(needs or FIRST_SEARCH_NEEDS)


def _compile(
    missing_needs: Sequence[str],
    missing: list[str],
    total: int,
    tell: Listener,
    cancel: Callable[[], bool] | None,
) -> None:
    """Wait for the crew; kernels that it does not compile are compiled in this process."""
    from toast_lab import kernels

    tell(total - len(missing), total)
    _muster([*missing_needs, *(need for need in FIRST_SEARCH_NEEDS if need not in missing_needs)])
    while missing:
        if cancel is not None and cancel():
            raise isolate.Cancelled("cancelled while kernels were prepared")
        missing_before = len(missing)
        working = any(child.poll() is None for child in _crew)
        missing = [name for name in missing if not kernels.load(kernels.KERNELS[name])]
        if missing and not working:
            kernels.make_ready(kernels.KERNELS[missing.pop(0)])
        if len(missing) != missing_before:
            tell(total - len(missing), total)
        elif missing:
            time.sleep(_POLL_INTERVAL_S)


def _names(needs: Iterable[str]) -> list[str]:
    """Import the kernels of ``needs`` and give their names, each once, in order of compilation."""
    from toast_lab import kernels

    modules = [f"toast_lab.{module}" for need in needs for module in KERNEL_NEEDS[need]]
    for module in modules:
        importlib.import_module(module)
    module_order = {module: i for i, module in reversed(list(enumerate(modules)))}
    names = [name for name in kernels.KERNELS if name.partition(":")[0] in module_order]
    function_order = {name: i for i, name in enumerate(_ORDER)}

    def rank(name: str) -> tuple[int, int]:
        module, _, function = name.partition(":")
        return function_order.get(function, len(function_order)), module_order[module]

    return sorted(names, key=rank)


# -- the crew --------------------------------------------------------------------------------------


def _muster(needs: Sequence[str]) -> None:
    """Start a child for each core, but at most 8, unless a crew is at work."""
    _crew[:] = [child for child in _crew if child.poll() is None]
    if _crew:
        return
    child_count = min(_MOST_CHILDREN, isolate.n_cores())
    with contextlib.suppress(OSError):  # no more processes can start: kernels are compiled here
        _crew.extend(
            subprocess.Popen(
                [sys.executable, "-m", "toast_lab.prepare", "--parent", str(os.getpid()), *needs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=isolate.child_environment(),
                start_new_session=True,
            )
            for _ in range(child_count)
        )
    if _crew:
        _dismiss_at_exit()
    for child in _crew:  # else ended children stay in the process table
        threading.Thread(target=child.wait, name="crew", daemon=True).start()


@functools.cache
def _dismiss_at_exit() -> None:
    @atexit.register
    def dismiss() -> None:
        for child in _crew:
            if child.poll() is None:
                child.kill()
        for child in _crew:
            child.wait()


def _work(needs: Sequence[str]) -> None:
    """The work of a child of the crew: ``needs`` first, then all others at low priority."""
    from toast_lab import kernels

    gc.disable()  # saves a tenth of the time: compilers make millions of objects, few cycles
    passed_over = False
    for pass_needs in (needs, [need for need in KERNEL_NEEDS if need not in needs]):
        for name in _names(pass_needs):
            kernel = kernels.KERNELS[name]
            if kernel_files.is_locked(kernel._cache.path):
                passed_over = True  # another child compiles it
            elif not kernels.load(kernel):
                kernels.make_ready(kernel)
        if hasattr(os, "nice"):
            os.nice(10)
    if not passed_over:
        kernel_files.write(_stamp(), b"")


def _stamp() -> Path:
    """A file that exists once all kernels are compiled; checking for it takes no imports."""
    package_folder = Path(__file__).parent
    digest = hashlib.sha256()
    versions = (importlib.metadata.version("numba"), platform.python_version(), platform.machine())
    for path in sorted(package_folder.rglob("*.py")):
        status = path.stat()
        digest.update(repr((path.name, status.st_size, status.st_mtime_ns)).encode())
    return kernel_files.path_of("all", (str(package_folder), versions), digest.digest())


# -- progress --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress_shown(listener: Listener | None) -> Iterator[Listener]:
    """Gives a function that reports progress.

    It reports to the listener, the parent of a child, the cell of a notebook, or a terminal.
    """
    if listener is not None:
        yield listener
    elif isolate.in_child() and not isolate.has_reported_activity():
        yield lambda done, total: None  # its parent does not expect texts
    elif isolate.in_child():
        with isolate.meanwhile():
            yield lambda done, total: isolate.report(progress_text(done, total))
    elif (display := _notebook()) is not None:
        handle = display("", display_id=True)
        yield lambda done, total: handle.update(_Text(progress_text(done, total)))
        handle.update(_Text(""))
    elif sys.stderr is not None and sys.stderr.isatty():
        yield lambda done, total: print(
            f"\r{progress_text(done, total)}", end="", file=sys.stderr, flush=True
        )
        print(f"\r{'':60}\r", end="", file=sys.stderr, flush=True)
    else:
        began = time.monotonic()
        print("preparing kernels, once on this machine ...", file=sys.stderr, flush=True)
        yield lambda done, total: None
        print(f"kernels prepared in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


class _Text:
    """A line of text that a notebook shows without quotes."""

    def __init__(self, line: str) -> None:
        self.line = line

    def __repr__(self) -> str:
        return self.line


def _notebook() -> Any:
    """IPython's ``display`` in a notebook, else None."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return importlib.import_module("IPython.display").display


def main(arguments: Sequence[str]) -> int:
    """Run ``python -m toast_lab.prepare``, which compiles all kernels.

    With ``--parent PID NEEDS`` the process is a child of a crew.
    """
    if arguments and arguments[0] == "--parent":
        isolate.end_with(int(arguments[1]))
        _work([need for need in arguments[2:] if need in KERNEL_NEEDS])
        return 0
    began = time.monotonic()
    stamp = _stamp()
    if not stamp.exists():
        prepare(*KERNEL_NEEDS)
        kernel_files.write(stamp, b"")
    print(f"all kernels are prepared, after {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    # With -m this file runs as __main__, beside the module that others import.
    sys.exit(importlib.import_module("toast_lab.prepare").main(sys.argv[1:]))
