"""Load and analyse a model in a child process.

Every function takes and gives plain data or frozen results, since all of it is pickled.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from toast_lab import fork_server, isolate
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.ir.model import Model, Recipe
from toast_lab.jobs.job import Watch

#: Run once in the fork server, for all children forked from it to load (``fork_server``).
before_fork = fork_server.import_jax


class LoadedModel(NamedTuple):
    """A model and its analysis; unpickling ties the analysis to the model again."""

    model: Model
    analysis: Analysis

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, tuple(self)


def _loaded(model: Model, analysis: Analysis) -> LoadedModel:
    analysis = analysis.of_model(model)
    return LoadedModel(analysis.model, analysis)


def load_model(which: str, sizes: dict[str, Any], platform: str | None = None) -> LoadedModel:
    """Load and analyse a model, as it is lowered for a platform; None: for this host.

    Code that needs the model's function later recreates it in a process of its own, since the
    page's process must not trace anything.
    """
    from toast_lab import frontends
    from toast_lab.frontends import stages

    isolate.report("preparing")
    with stages.listening(isolate.report):
        model = frontends.load(which, platform=platform, **sizes)
    model = dataclasses.replace(model, function=Recipe(which, dict(sizes)))
    isolate.report("analysing")
    return LoadedModel(model, analyse(model))


# -- called in a thread: these start their own children --------------------------------------------
def load_own(
    which: str, sizes: dict[str, Any], platform: str | None, *, watch: Watch
) -> LoadedModel:
    """Load and analyse the user's ``package.module:make``, as it is lowered for a platform."""
    from toast_lab import frontends

    model = frontends.load(
        which, platform=platform, on_event=watch.on_event, cancel=watch.cancel, **sizes
    )
    return _analysed(model, which, watch)


def read_file(name: str, content: bytes, time_limit_s: float, *, watch: Watch) -> LoadedModel:
    """Read and analyse StableHLO or a jax.export artefact, each step in a child process."""
    from toast_lab import frontends

    watch.on_event("reading")
    model = frontends.from_stablehlo(
        content,
        name=name.rpartition(".")[0] or name,
        title=name,
        time_limit_s=time_limit_s,
        cancel=watch.cancel,
    )
    watch.on_event("analysing")
    return _analysed(model, name, watch, time_limit_s=time_limit_s)


def _analysed(model: Model, name: str, watch: Watch, **limits: Any) -> LoadedModel:
    """Analyse a model in a child process."""
    analysis = isolate.run_in_child(
        "toast_lab.conflicts.analysis:analyse",
        model,
        on_event=watch.on_event,
        cancel=watch.cancel,
        activity=f"analysing {name}",
        **limits,
    )
    return _loaded(model, analysis)
