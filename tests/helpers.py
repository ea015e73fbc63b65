"""Helpers that many tests share, above all analysed programs, each made once."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from evaluation.kept_models import kept
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Problem
from toast_lab.frontends import from_jax, load
from toast_lab.ir.model import Model, Recipe
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.propagate import Propagation
from toast_lab.sharding.sharding import Sharding

# A Transformer small enough to enumerate and execute, with sizes that distinguish its dims.
SMALL = {
    "layers": 1,
    "d_model": 64,
    "hidden": 128,
    "heads": 4,
    "key_size": 16,
    "vocab": 256,
    "batch": 8,
    "sequence": 32,
}


@functools.lru_cache(maxsize=64)
def _model(name: str, sizes: tuple[tuple[str, Any], ...]) -> Model:
    options = dict(sizes)
    return kept(f"{name} {sizes}", lambda: load(name, **options), Recipe(name, options))


@functools.lru_cache(maxsize=64)
def _analysis(name: str, phases: str, sizes: tuple[tuple[str, Any], ...]) -> Analysis:
    model = _model(name, sizes)
    return analyse(model, phases=phases)


def model(name: str, **sizes: Any) -> Model:
    """Load a built-in model, once for the same sizes."""
    return _model(name, tuple(sorted(sizes.items())))


def analysed(name: str, *, phases: str = "joined", **sizes: Any) -> Analysis:
    """Analyse a built-in model, once for the same sizes."""
    return _analysis(name, phases, tuple(sorted(sizes.items())))


def small_transformer(**sizes: Any) -> Analysis:
    """Analyse the small Transformer with some sizes changed."""
    return analysed("transformer", **{**SMALL, **sizes})


def traced(fn: Any, *args: Any, **options: Any) -> Analysis:
    """Trace and analyse any function."""
    m = from_jax(fn, *args, **options)
    return analyse(m)


def propagated_arguments(problem: Problem, *shardings: tuple[str, int, str]) -> Sharding:
    """Propagate (argument path, dim, mesh axis) decisions in order; each must have an effect."""
    propagation = Propagation(problem.analysis, problem.mesh)
    state = propagation.unsharded()
    for path, dim, axis in shardings:
        value = np.array([problem.analysis.program.value_name.index(path)])
        assert propagation.shard(state, value, dim, problem.mesh.axes.index(axis))
    return state


def plan(problem: Problem, *actions: Any) -> Plan:
    """Shorthand for Plan.from_actions."""
    return Plan.from_actions(problem, actions)


def pair_texts(analysis: Analysis) -> list[tuple[str, str]]:
    """The conflicts as pairs of names' texts, in program order, the smaller name first."""
    return [(analysis.name_text[a], analysis.name_text[b]) for a, b in analysis.pairs]


@functools.cache
def from_python(helper: Any) -> Any:
    """Wrap a function that only kernels can call so that Python can call it.

    That function is a ``toast_lab.kernels.helper``.
    """
    import numba

    @numba.njit
    def call(*given):  # type: ignore[no-untyped-def]
        return helper(*given)

    return call
