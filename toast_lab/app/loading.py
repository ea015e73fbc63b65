"""Loading a model or a file, and machines of one's own: a part of the session."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from toast_lab.app import worker
from toast_lab.app.jobs import Job
from toast_lab.errors import FrontendError
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.machine_model import Machine
from toast_lab.models import registry

MAX_UPLOAD_BYTES = 64 * 2**20  #: of a file dropped on the page
READ_LIMIT_S = 120.0
MAX_MACHINES = 16
Then = Callable[[Any], None]
SMALL = ("mlp", "xxt", "crossed", "attention")


@functools.lru_cache(maxsize=16)
def _load_here(which: str, sizes: tuple[tuple[str, Any], ...]) -> worker.Loaded:
    return worker.load_model(which, dict(sizes))


def load_ahead(which: str, sizes: tuple[tuple[str, Any], ...] = ()) -> worker.Loaded:
    """A built-in model before anybody asks for it; one that is known already costs nothing."""
    return _load_here(which, tuple(sorted(sizes)))


def loads_at_once(which: str, sizes: dict[str, Any]) -> bool:
    """Is a built-in model small enough to be traced without a child?

    A child takes seconds to start.
    """
    if which == "transformer":
        layers = sizes.get("layers", 2)
        return isinstance(layers, int) and layers <= 2
    return which in SMALL


class Loading:
    """What a session does to come to a model.

    Attributes:
        which: name of the built-in model that is loaded, empty for any other.
        sizes: the sizes that it was asked for.
        own_machines: by name, machines that were typed or dropped in.
    """

    which: Any
    sizes: Any
    own_machines: Any
    guarded: Callable[[], AbstractContextManager[None]]
    say: Callable[..., None]
    show: Callable[..., None]
    _start: Callable[..., None]

    def load(
        self, which: str, sizes: dict[str, Any] | None = None, then: Then | None = None
    ) -> None:
        """Load a built-in model, or ``module:make`` (the caller has checked that this is allowed).

        ``then`` is called with the session once the model is there, which for a large one is later.
        """
        sizes = dict(sizes or {})
        with self.guarded():
            if loads_at_once(which, sizes):
                registry.built_in(which)
                loaded = _load_here(which, tuple(sorted(sizes.items())))
                self.show(loaded, which, sizes)
                if then is not None:
                    then(self)
                return
            taken = functools.partial(self._loaded, which if ":" not in which else "", sizes, then)
            if ":" in which:
                self._start("load", f"loading {which}", taken, worker.load_own, which, sizes)
            else:
                registry.built_in(which)
                self._start(
                    "load",
                    f"loading {which}",
                    taken,
                    "toast_lab.app.worker:load_model",
                    which,
                    sizes,
                )

    def load_file(self, name: str, content: bytes) -> None:
        """Read a file that was dropped on the page.

        StableHLO or a jax.export artefact, in a child, never as Python.
        """
        with self.guarded():
            refuse_file(name, len(content))
            taken = functools.partial(self._loaded, "", {}, None)
            self._start(
                "load",
                f"reading {name}",
                taken,
                worker.read_file,
                name,
                bytes(content),
                READ_LIMIT_S,
            )

    def _loaded(self, which: str, sizes: dict[str, Any], then: Then | None, job: Job) -> None:
        self.show(job.result, which, sizes)
        if then is not None:
            then(self)

    def keep_machine(self, machine: Machine) -> Machine:
        """Offer a machine of one's own.

        Gives it under its name here, which is no built-in one's.
        """
        if machine.name in MACHINES:
            machine = dataclasses.replace(machine, name=f"{machine.name} (own)")
        kept = {**self.own_machines, machine.name: machine}
        self.own_machines = dict(list(kept.items())[-MAX_MACHINES:])
        return machine


def refuse_file(name: str, nbytes: int) -> None:
    """Refuse what can be seen to be wrong before it is read.  Raises FrontendError."""
    if name.casefold().endswith((".py", ".ipynb", ".pyc", ".so")):
        raise FrontendError(
            f"{name} is code, and a file dropped here is never run. Give your own model to the "
            "server that you start: "
            "toast-lab serve my.module:make. Or export it first, with "
            "jax.export.export(f)(*args).serialize()"
        )
    if nbytes > MAX_UPLOAD_BYTES:
        raise FrontendError(
            f"{name} has {nbytes / 2**20:.1f} MiB, and at most {MAX_UPLOAD_BYTES / 2**20:.0f} "
            "MiB are taken here. "
            "Mostly such a file holds weights as constants: export the program with its "
            "parameters as arguments. "
            "Or read it with tl.from_stablehlo(path) and tl.explore(model)."
        )
    if not nbytes:
        raise FrontendError(f"{name} is empty")
