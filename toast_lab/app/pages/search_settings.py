"""The settings of a search.

Problem, method, budget, seed and options, checked as they are typed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.checked import CheckedField, number
from toast_lab.app.session import Session
from toast_lab.errors import ToastError
from toast_lab.machines.catalogue import MACHINES
from toast_lab.search.methods import METHODS, method_named
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.text import read_gib
from toast_lab.views.markup import Safe, h, join

MOST_DEVICES = 4096
MOST_SECONDS = 86_400
LEAST_GIB, MOST_GIB = 2**-20, 1_000_000


def parse_mesh(text: str) -> Mesh:
    """A mesh of at most 4096 devices.

    Raises ToastError or ValueError with a message that says what to write instead.
    """
    mesh = make_mesh(text)
    if mesh.n_devices > MOST_DEVICES:
        raise ValueError(
            f"{mesh} has {mesh.n_devices:,} devices; at most {MOST_DEVICES:,} are allowed here: "
            "make an axis smaller"
        )
    return mesh


def parse_memory_gib(text: str) -> float | None:
    """A memory limit in GiB; None for an empty text, which means the machine's.

    Raises ValueError with a message that says what to write instead.

    >>> parse_memory_gib("512 MiB")
    0.5
    """
    if not text:
        return None
    size_gib = read_gib(text)
    if not LEAST_GIB <= size_gib <= MOST_GIB:
        raise ValueError(
            f"{text} is out of range; give a size from 1 KiB to {MOST_GIB:,} GiB, or leave it "
            "empty for the machine's"
        )
    return size_gib


def parse_options(method: str, text: str) -> dict[str, Any]:
    """A text such as ``exploration=0.5, depth=20`` as a dict.

    Raises ValueError for text that cannot be read and for options that the method does not take.

    >>> parse_options("mcts", "depth=20, solve=False")
    {'depth': 20, 'solve': False}
    >>> parse_options("mcts", "width")
    Traceback (most recent call last):
    ...
    ValueError: cannot read 'width'; write name=value, for instance depth=20, patience=2
    """
    if not text:
        return {}
    cls, options = method_named(method), dict[str, Any]()
    for setting in text.split(","):
        name, separator, value = (word.strip() for word in setting.partition("="))
        if not separator or not value:
            raise ValueError(
                f"cannot read {setting.strip()!r}; write name=value, for instance depth=20, "
                "patience=2"
            )
        if unknown := cls.unknown([name]):
            raise ValueError(unknown)
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ValueError(
                f"{name}={value}: cannot read {value!r}; give a number, True, False or None"
            ) from None
        if not isinstance(options[name], bool | int | float | str | None):
            raise ValueError(f"{name}={value}: give a number, True, False or None")
    try:
        cls.of(options)
    except ToastError as error:
        raise ValueError(str(error)) from None
    return options


def options_help(method: str) -> Safe:
    """The options of a method and their meanings, as a collapsed list."""
    rows = [h("li", str(option)) for option in method_named(method).options().values()]
    if not rows:
        return join()
    return h("details", h("summary", "options of this method"), h("ul", *rows), cls="quiet")


class SearchSettings:
    """The fields of a search's settings.

    Attributes:
        problem_box: mesh, machine and memory limit.
        search_box: method, budget and seed.
        options_box: options of the method, which few searches need.

    ``apply`` writes the fields into the session; ``errors`` says what is wrong with them.
    """

    def __init__(self, session: Session, on_check: Callable[[], None]) -> None:
        self.session = session
        watch: dict[str, Any] = {"on_check": on_check}
        self.mesh = CheckedField(
            "mesh (axis=size, ...)",
            session.loaded.mesh,
            parse_mesh,
            lambda mesh: self._problem(mesh=str(mesh)),
            **watch,
        )
        self.machine = pn.widgets.Select(
            name="machine",
            options=[*MACHINES, *session.loaded.own_machines],
            value=session.loaded.machine,
            **look.FIELD,
        )
        self.machine.param.watch(lambda event: self._problem(machine=event.new), "value")
        self.memory = CheckedField(
            "memory limit, GiB",
            f"{session.loaded.memory_gib:g}" if session.loaded.memory_gib else "",
            parse_memory_gib,
            lambda memory_gib: self._problem(memory_gib=memory_gib),
            placeholder="the machine's",
            **watch,
        )
        self.method = pn.widgets.Select(
            name="method", options=list(METHODS), value=session.searches.method, **look.FIELD
        )
        self._sentence, self._options_help = look.text(), look.text()
        self.seconds = CheckedField(
            "seconds",
            _text(session.searches.seconds),
            number(0.5, MOST_SECONDS, unit=" seconds", empty="no limit"),
            placeholder="no limit",
            **watch,
        )
        self.evaluations = CheckedField(
            "plans",
            _text(session.searches.evaluations),
            number(1, 1e9, whole=True, unit=" plans", empty="no limit"),
            placeholder="no limit",
            description="Distinct shardings that may be priced; empty: no limit.",
            **watch,
        )
        self.seed = CheckedField(
            "seed", str(session.searches.seed), number(0, 2**63 - 1, whole=True), **watch
        )
        self.options = CheckedField(
            "options",
            ", ".join(f"{key}={value}" for key, value in session.searches.options.items()),
            lambda text: parse_options(str(self.method.value), text),
            placeholder="name=value, ...",
            **watch,
        )
        look.watch(self.method, self._describe, "value")
        self._describe()
        gap = pn.Spacer(width=8)
        budget = look.row(self.seconds, gap, self.evaluations, gap.clone(), self.seed)
        self.problem_box = look.column(
            look.text(h("h2", "problem")),
            self.mesh,
            look.row(self.machine, pn.Spacer(width=8), self.memory),
        )
        self.search_box = look.column(
            look.text(h("h2", "search")), self.method, self._sentence, budget
        )
        self.options_box = look.column(self.options, self._options_help)
        look.watch(session.loaded, self._follow, "mesh", "machine", "own_machines", "memory_gib")

    def _problem(self, **values: Any) -> None:
        self.session.set_problem(**values)

    def _follow(self) -> None:
        """Show the values in force, including those set elsewhere."""
        session = self.session
        if self.mesh.error or str(self.mesh.value) != str(make_mesh(session.loaded.mesh)):
            self.mesh.put(session.loaded.mesh)
        self.machine.param.update(
            options=[*MACHINES, *session.loaded.own_machines], value=session.loaded.machine
        )
        if (self.memory.value or None) != (session.loaded.memory_gib or None):
            self.memory.put(f"{session.loaded.memory_gib:g}" if session.loaded.memory_gib else "")

    def _describe(self) -> None:
        method = str(self.method.value)
        # All sentences in one place, one of them seen: the button to run stands below, and would
        # move under the pointer of whoever goes on to it if the room followed the sentence
        self._sentence.object = h(
            "div",
            *[
                h("p", method_named(name).sentence(), cls="quiet" if name == method else "unseen")
                for name in METHODS
            ],
            cls="stacked",
        )
        self._options_help.object = options_help(method)
        self.options.recheck()

    @property
    def problem_errors(self) -> list[str]:
        """Errors in the fields of the problem."""
        return [field.error for field in (self.mesh, self.memory) if field.error]

    @property
    def errors(self) -> list[str]:
        """Errors that prevent a search from starting."""
        errors = [
            field.error
            for field in (self.seconds, self.evaluations, self.seed, self.options)
            if field.error
        ]
        if not errors and self.seconds.value is None and self.evaluations.value is None:
            errors = ["set a limit of seconds or plans, or the search never ends"]
        return self.problem_errors + errors

    def apply(self) -> None:
        """Write method, budget, seed and options into the session."""
        self.session.searches.param.update(
            method=self.method.value,
            seconds=self.seconds.value,
            evaluations=self.evaluations.value,
            seed=int(self.seed.value),
            options=dict(self.options.value),
        )

    def apply_budget(self) -> None:
        """Write only the budget: a resumed search keeps its method, seed and options."""
        self.session.searches.param.update(
            seconds=self.seconds.value, evaluations=self.evaluations.value
        )


def _text(value: float | int | None) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
