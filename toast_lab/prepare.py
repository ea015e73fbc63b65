"""Prepare kernels: what a search needs is compiled ahead, on all cores, once on a machine.

``prepare("price", "mcts")`` gives once all kernels of these needs are loaded.  Those that were
never compiled on this machine are compiled by a crew of child processes, which leave them on disk;
the caller is told how many are ready.  The crew goes on with the kernels of all other needs, at
low priority, until it is done or this process ends.  ``start_early`` sets a crew to work and does
not wait: while a model is traced, its cores have nothing else to do.

Where children cannot run or nothing can be written, kernels are compiled in this process.
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

#: Modules whose kernels are needed: to price plans, for each search, and for what only follows
#: in a search.
NEEDS = {
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
    "refine": ("search.mcts.refine", "search.alpa.strategy_prices"),
    "alpa": ("search.alpa.strategy_prices",),
    "automap": ("search.automap", "sharding.propagate"),
    "bound": (
        "search.gap.dual_ascent",
        "search.gap.relaxed_prices",
        "search.alpa.strategy_prices",
    ),
    "exhaustive": (
        "search.exhaustive.exhaustive",
        "search.exhaustive.bound",
        "search.exhaustive.bound_tables",
    ),
}
FIRST = ("price", "mcts", "refine")  #: what a first search needs
#: What others are made of and what is waited for first goes first, so that all cores end at about
#: the same time.
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
_LOOK_EVERY_S = 0.05
_MOST_CHILDREN = 8

Listener = Callable[[int, int], None]

_ready: set[str] = set()
_lock = threading.Lock()
_crew: list[subprocess.Popen[bytes]] = []


def progress_text(done: int, total: int) -> str:
    """What is being done, for people.

    >>> progress_text(9, 24)
    'preparing kernels, once on this machine: 9 of 24'
    """
    return f"preparing kernels, once on this machine: {done} of {total}"


def prepare(
    *needs: str, listener: Listener | None = None, cancel: Callable[[], bool] | None = None
) -> None:
    """Load all kernels of ``needs``, or compile them.

    Args:
        needs: of ``NEEDS``; methods that need no kernels of their own are let pass.
        listener: told (kernels there, kernels) if some have to be compiled; by default a line is
            shown.
        cancel: polled; True ends the wait, not the crew.

    Raises:
        Cancelled: it was.
    """
    missing_needs = [need for need in dict.fromkeys(needs) if need in NEEDS and need not in _ready]
    if not missing_needs:
        return
    from toast_lab import kernels

    with _lock:
        names = _names(missing_needs)
        missing = [name for name in names if not kernels.load(kernels.KERNELS[name])]
        if missing:
            with _shown(listener) as tell:
                _compile(
                    missing_needs=missing_needs,
                    missing=missing,
                    total=len(names),
                    tell=tell,
                    cancel=cancel,
                )
        _ready.update(missing_needs)


def load_present() -> None:
    """Load what there is of the kernels of a first search; compiles nothing and does not wait."""
    from toast_lab import kernels

    with _lock:
        for need in FIRST:
            if need not in _ready:
                names = _names([need])
                if all([kernels.load(kernels.KERNELS[name]) for name in names]):
                    _ready.add(need)


def start_early(*needs: str) -> None:
    """Let a crew compile what is missing for ``needs``, and all else.

    ``needs`` default to those of a first search.  Does not wait.
    """
    if isolate.in_child() or _stamp().exists():
        return
    with _lock:
        _muster(needs or FIRST)


def _compile(
    missing_needs: Sequence[str],
    missing: list[str],
    total: int,
    tell: Listener,
    cancel: Callable[[], bool] | None,
) -> None:
    """Wait for the crew; what it does not make is compiled here."""
    from toast_lab import kernels

    tell(total - len(missing), total)
    _muster([*missing_needs, *(need for need in FIRST if need not in missing_needs)])
    while missing:
        if cancel is not None and cancel():
            raise isolate.Cancelled("cancelled while kernels were prepared")
        before = len(missing)
        working = any(child.poll() is None for child in _crew)
        missing = [name for name in missing if not kernels.load(kernels.KERNELS[name])]
        if missing and not working:
            kernels.make_ready(kernels.KERNELS[missing.pop(0)])
        if len(missing) != before:
            tell(total - len(missing), total)
        elif missing:
            time.sleep(_LOOK_EVERY_S)


def _names(needs: Iterable[str]) -> list[str]:
    """Names of the kernels of ``needs``, each once; imports them."""
    from toast_lab import kernels

    modules = [f"toast_lab.{module}" for need in needs for module in NEEDS[need]]
    for module in modules:
        importlib.import_module(module)
    order = {module: i for i, module in reversed(list(enumerate(modules)))}
    names = [name for name in kernels.KERNELS if name.partition(":")[0] in order]
    position = {name: i for i, name in enumerate(_ORDER)}

    def rank(name: str) -> tuple[int, int]:
        module, _, function = name.partition(":")
        return position.get(function, len(position)), order[module]

    return sorted(names, key=rank)


# -- the crew --------------------------------------------------------------------------------------


def _muster(needs: Sequence[str]) -> None:
    """Start a child for each core, unless some are at work."""
    _crew[:] = [child for child in _crew if child.poll() is None]
    if _crew:
        return
    count = min(_MOST_CHILDREN, isolate.n_cores())
    with contextlib.suppress(OSError):  # no room for more processes: it is done here
        _crew.extend(
            subprocess.Popen(
                [sys.executable, "-m", "toast_lab.prepare", "--parent", str(os.getpid()), *needs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=isolate.child_environment(),
                start_new_session=True,
            )
            for _ in range(count)
        )
    if _crew:
        _dismiss_at_exit()
    for child in _crew:  # or each would stay in the process table until the next crew is called
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
    """What one of the crew does: the needs first, then all the others without haste."""
    from toast_lab import kernels

    gc.disable()  # compilers make millions of small objects and few circles: a tenth of the time
    passed_over = False
    for wanted in (needs, [need for need in NEEDS if need not in needs]):
        for name in _names(wanted):
            kernel = kernels.KERNELS[name]
            if kernel_files.is_locked(kernel._cache.path):
                passed_over = True  # another one compiles it
            elif not kernels.load(kernel):
                kernels.make_ready(kernel)
        if hasattr(os, "nice"):
            os.nice(10)
    if not passed_over:
        kernel_files.write(_stamp(), b"")


def _stamp() -> Path:
    """A file that is there once all kernels are: to look for it takes no imports."""
    home = Path(__file__).parent
    digest = hashlib.sha256()
    versions = (importlib.metadata.version("numba"), platform.python_version(), platform.machine())
    digest.update(repr((str(home), versions)).encode())
    for path in sorted(home.rglob("*.py")):
        status = path.stat()
        digest.update(repr((path.name, status.st_size, status.st_mtime_ns)).encode())
    return kernel_files.folder() / f"all-{digest.hexdigest()[:16]}.kernel"


# -- telling ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _shown(listener: Listener | None) -> Iterator[Listener]:
    """How to tell of progress.

    It is told to the listener, the parent of a child, the cell of a notebook, or a terminal.
    """
    if listener is not None:
        yield listener
    elif isolate.in_child() and not isolate.has_reported_activity():
        yield lambda done, total: None  # whoever listens to it expects something else than texts
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
    """A line of a notebook's cell."""

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
    """``python -m toast_lab.prepare`` compiles all kernels.

    With ``--parent PID NEEDS`` it is one of a crew.
    """
    if arguments and arguments[0] == "--parent":
        isolate.end_with(int(arguments[1]))
        _work([need for need in arguments[2:] if need in NEEDS])
        return 0
    began = time.monotonic()
    stamp = _stamp()
    if not stamp.exists():
        prepare(*NEEDS)
        kernel_files.write(stamp, b"")
    print(f"all kernels are there, after {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    # Under -m this file would be a module of its own beside the one that others import.
    sys.exit(importlib.import_module("toast_lab.prepare").main(sys.argv[1:]))
