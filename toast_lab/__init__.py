"""TOAST Lab: see, search, price and execute shardings of real models.

The public names below are imported on first use, so that ``import toast_lab`` itself is nearly
free. ``toast_lab/pipeline.py`` shows the whole method on one page.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from toast_lab._version import __version__

_NAMES = {
    "Advice": "toast_lab.advice.advice_result:Advice",
    "Audit": "toast_lab.audit.audit:Audit",
    "Analysis": "toast_lab.conflicts.analysis:Analysis",
    "Budget": "toast_lab.search.contract:Budget",
    "ConfirmedResult": "toast_lab.confirm.confirmed_result:ConfirmedResult",
    "Cost": "toast_lab.cost.problem:Cost",
    "Judging": "toast_lab.confirm.loop:Judging",
    "LowerBound": "toast_lab.search.gap.certify:LowerBound",
    "Machine": "toast_lab.machines.machine_model:Machine",
    "Mesh": "toast_lab.sharding.mesh:Mesh",
    "Model": "toast_lab.ir.model:Model",
    "Plan": "toast_lab.plan_verbs:Plan",
    "Problem": "toast_lab.cost.problem:Problem",
    "Program": "toast_lab.ir.program:Program",
    "Race": "toast_lab.search.race:Race",
    "SearchResult": "toast_lab.search.contract:SearchResult",
    "Status": "toast_lab.search.contract:Status",
    "ToastError": "toast_lab.errors:ToastError",
    "Compiled": "toast_lab.runtime.compiled:Compiled",
    "Comparison": "toast_lab.compare.result:Comparison",
    "advise": "toast_lab.pipeline:advise",
    "analyse": "toast_lab.conflicts.analysis:analyse",
    "annotations": "toast_lab.ir.annotations:annotations_of",
    "audit": "toast_lab.audit.audit:audit",
    "annotate": "toast_lab.lowering.annotate:annotate",
    "bound": "toast_lab.search.gap.certify:lower_bound",
    "check": "toast_lab.advice.check:check",
    "choices": "toast_lab.written.choices:choices",
    "conflicts": "toast_lab.explain.board:conflicts",
    "coverage": "toast_lab.conflicts.coverage:coverage",
    "diff": "toast_lab.explain.difference:difference",
    "cut_results": "toast_lab.frontends.padded_models:cut_results",
    "compare": "toast_lab.compare.compare:compare",
    "compile": "toast_lab.runtime.compile:compile_plan",
    "diff_compiled": "toast_lab.runtime.diff:diff_compiled",
    "explore": "toast_lab.app.explore:explore",
    "from_jax": "toast_lab.frontends:from_jax",
    "from_stablehlo": "toast_lab.frontends:from_stablehlo",
    "from_torch": "toast_lab.frontends:from_torch",
    "kernel_rule": "toast_lab.frontends:kernel_rule",
    "why": "toast_lab.explain.why:why",
    "why_not": "toast_lab.advice.why_not:why_not",
    "listing": "toast_lab.lowering.listing:listing",
    "load": "toast_lab.frontends:load",
    "needed_constraints": "toast_lab.lowering.needed_constraints:needed_constraints",
    "padded": "toast_lab.advice.padding_search:padded",
    "padding_prices": "toast_lab.advice.padding_search:padding_prices",
    "padded_arguments": "toast_lab.frontends.padded_models:padded_arguments",
    "plan_words": "toast_lab.written.traits:plan_words",
    "price": "toast_lab.cost.problem:price",
    "price_rules": "toast_lab.explain.acting_rules:price_rules",
    "race": "toast_lab.pipeline:race",
    "replay": "toast_lab.compare.replay:replay",
    "report": "toast_lab.report.report:report",
    "replicated": "toast_lab.pipeline:replicated",
    "roles": "toast_lab.conflicts.colour_roles:roles",
    "run": "toast_lab.runtime.run:run",
    "search": "toast_lab.pipeline:search",
    "start_race": "toast_lab.jobs.background:start_race",
    "start_search": "toast_lab.jobs.background:start_search",
    "usual_plans": "toast_lab.search.usual_plans:usual_plans",
}

__all__ = ["__version__", *_NAMES, "charts", "views"]

if TYPE_CHECKING:
    from toast_lab import charts, views
    from toast_lab.advice.advice_result import Advice
    from toast_lab.advice.check import check
    from toast_lab.advice.padding_search import padded, padding_prices
    from toast_lab.advice.why_not import why_not
    from toast_lab.app.explore import explore
    from toast_lab.audit.audit import Audit, audit
    from toast_lab.compare.compare import compare
    from toast_lab.compare.replay import replay
    from toast_lab.compare.result import Comparison
    from toast_lab.confirm.confirmed_result import ConfirmedResult
    from toast_lab.confirm.loop import Judging
    from toast_lab.conflicts.analysis import Analysis, analyse
    from toast_lab.conflicts.colour_roles import roles
    from toast_lab.conflicts.coverage import coverage
    from toast_lab.cost.problem import Cost, Problem, price
    from toast_lab.errors import ToastError
    from toast_lab.explain.acting_rules import price_rules
    from toast_lab.explain.board import conflicts
    from toast_lab.explain.difference import difference as diff
    from toast_lab.explain.why import why
    from toast_lab.frontends import from_jax, from_stablehlo, from_torch, kernel_rule, load
    from toast_lab.frontends.padded_models import cut_results, padded_arguments
    from toast_lab.ir.annotations import annotations_of as annotations
    from toast_lab.ir.model import Model
    from toast_lab.ir.program import Program
    from toast_lab.jobs.background import start_race, start_search
    from toast_lab.lowering.annotate import annotate
    from toast_lab.lowering.listing import listing
    from toast_lab.lowering.needed_constraints import needed_constraints
    from toast_lab.machines.machine_model import Machine
    from toast_lab.pipeline import advise, race, replicated, search
    from toast_lab.plan_verbs import Plan
    from toast_lab.report.report import report
    from toast_lab.runtime.compile import compile_plan as compile
    from toast_lab.runtime.compiled import Compiled
    from toast_lab.runtime.diff import diff_compiled
    from toast_lab.runtime.run import run
    from toast_lab.search.contract import Budget, SearchResult, Status
    from toast_lab.search.gap.certify import LowerBound
    from toast_lab.search.gap.certify import lower_bound as bound
    from toast_lab.search.race import Race
    from toast_lab.search.usual_plans import usual_plans
    from toast_lab.sharding.mesh import Mesh
    from toast_lab.written.choices import choices
    from toast_lab.written.traits import plan_words


_STAGES = (
    "audit",
    "search",
    "conflicts",
    "compare",
    "report",
)  # stages that are public functions as well


class _Stage(types.ModuleType):
    """A stage, such as ``toast_lab.search``, that can be called as the function of that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, _, attribute = _NAMES[self.__name__.rpartition(".")[2]].partition(":")
        return getattr(importlib.import_module(module), attribute)(*args, **kwargs)


def _cells() -> Any:
    return importlib.import_module("toast_lab.app.cells")


class _Picture(types.ModuleType):
    """A module, such as ``toast_lab.views.tiles``, that can be called as the view of that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(_cells(), self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Views(types.ModuleType):
    """The stage ``toast_lab.views``, which also gives access to the views for notebooks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in _cells().__all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(_cells(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) and name in _cells().__all__:
            value.__class__ = _Picture
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_cells().__all__})


class _Package(types.ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # Importing any file of a stage binds the stage's module here, in place of the function of
        # the same name.
        if isinstance(value, types.ModuleType) and (name in _STAGES or name == "views"):
            value.__class__ = _Views if name == "views" else _Stage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in ("charts", "views"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'toast_lab' has no attribute {name!r}")
    module, _, attribute = _NAMES[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    if name in _STAGES:
        importlib.import_module(f"{__name__}.{name}")
        return globals()[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
