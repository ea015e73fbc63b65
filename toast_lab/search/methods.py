"""The search methods: each is a frozen dataclass with its options as fields and a method ``run``.

``METHODS`` maps their names to the classes. The decorator ``register`` adds one, in any module:

    @register
    @dataclasses.dataclass(frozen=True)
    class Coin(Method):
        \"\"\"Heads or tails for every action.\"\"\"

        name = "coin"
        heads: float = option(0.5, "chance that an action is taken", at_least=0, at_most=1)

        def run(self, recorder: Recorder, seed: int) -> Status:
            ...

From then on ``tl.search(problem, "coin", heads=0.2)`` works, ``toast-lab search --help`` and the
explorer list it with its options, races and sweeps take it into their child processes, and a search
of it can be saved and resumed. The first line of its docstring describes the method to users.

The code of a method is imported only when it runs, because ``--help`` has to be quick. Start
reading at ``Method``; TOAST's own method is ``Mcts``.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import pkgutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from toast_lab.errors import InvalidProblem, did_you_mean
from toast_lab.search import method_options as options
from toast_lab.search.options import Option, options_of

if TYPE_CHECKING:
    from typing import Self

    from toast_lab.search.limits import Status
    from toast_lab.search.recorder import Recorder


@dataclasses.dataclass(frozen=True)
class Method(abc.ABC):
    """A search method; an instance holds the checked options of one search.

    Raises (when it is made):
        InvalidProblem: options are of the wrong kind or out of range; all of them are listed.

    Attributes:
        name: the name in ``METHODS``, traces and commands.
        by_hand: does the user give it the plans to price? Then its result is the plan that was
            asked for, whatever the price, and there is nothing to race.
    """

    name: ClassVar[str]
    by_hand: ClassVar[bool] = False

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.options()}
        if wrong := self.offenders(given):
            raise InvalidProblem(_joined(self.name, wrong))

    @abc.abstractmethod
    def run(self, recorder: Recorder, seed: int) -> Status:
        """Search until the method has nothing more to try, and return why it ended.

        Args:
            recorder: prices states and keeps the best one; it raises ``Stop`` when the budget is
                used up or the search was cancelled, which ``run`` must not catch.
            seed: seed of all random choices; the same seed has to give the same result. What a
                method asks of the clock, or of anything else that differs from run to run, has to
                go through ``recorder.told``, so that the search can be replayed.
        """

    @classmethod
    def sentence(cls) -> str:
        """A sentence on what the method does: the first line of its docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    @classmethod
    def options(cls) -> Mapping[str, Option]:
        """The options by name."""
        return _options(cls)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The method with these options.

        Raises:
            InvalidProblem: options are unknown or wrong; all of them are listed.
        """
        if wrong := cls.offenders(given):
            raise InvalidProblem(_joined(cls.name, wrong))
        return cls(**given)

    @classmethod
    def offenders(cls, given: Mapping[str, Any]) -> list[str]:
        """The offences of some options: unknown names, wrong kinds, values out of range."""
        options = cls.options()
        wrong = [message] if (message := cls.unknown(given)) else []
        known = (option for name, option in options.items() if name in given)
        return wrong + [
            message for option in known if (message := option.offence(given[option.name]))
        ]

    @classmethod
    def unknown(cls, names: Iterable[str]) -> str:
        """A sentence on the names that are no options of the method; empty if all of them are."""
        names, options = [*names], cls.options()
        unknown = [f"{name}{did_you_mean(name, options)}" for name in names if name not in options]
        if not unknown:
            return ""
        limits = [f"{name}=..." for name in names if name in ("seconds", "evaluations")]
        budget = f" (limits are given as budget=tl.Budget({', '.join(limits)}))" if limits else ""
        return (
            f"{cls.name} has no option {', '.join(unknown)}; it has {', '.join(options) or 'none'}"
            + budget
        )

    def as_json(self, names: Iterable[str]) -> dict[str, Any]:
        """The named options that JSON can hold; the user gives the others again on resuming."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if Option.is_plain(value)}


MethodClass = TypeVar("MethodClass", bound=type[Method])

METHODS: dict[str, type[Method]] = {}


def register(cls: MethodClass) -> MethodClass:
    """Class decorator that adds a method to ``METHODS``.

    Raises:
        TypeError: a field was not made by ``option``.
        ValueError: another class has the same name.
    """
    other = METHODS.get(cls.name)
    if other is not None and reference(other) != reference(cls):
        raise ValueError(f"{reference(cls)}: {reference(other)} is already called {cls.name!r}")
    cls.options()
    METHODS[cls.name] = cls
    return cls


def method_named(name: str) -> type[Method]:
    """The method of this name. Raises InvalidProblem if there is none."""
    if name not in METHODS:
        raise InvalidProblem(no_method(name))
    return METHODS[name]


def no_method(name: object) -> str:
    """The error message for an unknown method, with the known ones."""
    suggestion = did_you_mean(str(name), METHODS)
    return f"no search is called {name!r}{suggestion}; methods: {', '.join(METHODS)}"


def methods_text() -> str:
    """A help text on all methods, one sentence each."""
    return " ".join(f"{name}: {cls.sentence().rstrip('.')}." for name, cls in METHODS.items())


def options_text() -> str:
    """A help text on the options of every method, an entry each."""
    lines = ["options of the methods, for --option NAME=VALUE:"]
    for name, cls in METHODS.items():
        lines += ["", f"  {name}"]
        for option in cls.options().values():
            lines += textwrap.wrap(
                str(option),
                width=80,
                initial_indent="    ",
                subsequent_indent="        ",
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def reference(cls: type[Method]) -> str:
    """The import path by which another process finds a method: "package.module:Class"."""
    return f"{cls.__module__}:{cls.__qualname__}"


def register_if_unknown(name: str, where: str) -> None:
    """Register a method of the parent process in this process, unless its name is known."""
    if name not in METHODS:
        METHODS[name] = pkgutil.resolve_name(where)


def added_methods() -> dict[str, str]:
    """References, by name, of methods registered by other modules, which a child process lacks."""
    return {name: reference(cls) for name, cls in METHODS.items() if cls.__module__ != __name__}


@functools.cache
def _options(cls: type[Method]) -> Mapping[str, Option]:
    return options_of(cls)


def _joined(name: str, offences: Sequence[str]) -> str:
    message = "; ".join(offences)
    return message if message.startswith(f"{name} has no option") else f"{name}: {message}"


# -- the built-in methods, in the order in which users see them ------------------------------------


@register
@dataclasses.dataclass(frozen=True)
class Mcts(options.MctsOptions, Method):
    """Monte-Carlo tree search over colours, sides of conflicts and mesh axes: the method of TOAST.

    Options follow the paper where it has them; ``search/mcts`` explains the others.
    """

    name = "mcts"

    def run(self, recorder: Recorder, seed: int) -> Status:
        """Search until the budget ends, a few starts bring nothing, or all states were priced."""
        from toast_lab.search.mcts import mcts

        return mcts.run(recorder, seed, self)


@register
@dataclasses.dataclass(frozen=True)
class Automap(options.AutomapOptions, Method):
    """Tree search over shardings of arguments, carried through the program after every action."""

    name = "automap"

    def run(self, recorder: Recorder, seed: int) -> Status:
        """Search until the budget ends, rounds bring nothing, or all states were priced."""
        from toast_lab.search import automap

        return automap.run(recorder, seed, self)


@register
@dataclasses.dataclass(frozen=True)
class Alpa(options.AlpaOptions, Method):
    """An integer program over the ways to split each op, with the costs of resharding between them.

    Options limit its size and the effort of HiGHS; ``search/integer_program`` explains them.
    """

    name = "alpa"

    def run(self, recorder: Recorder, seed: int) -> Status:
        """Solve from coarse to fine grains, until all are solved or the budget is used up."""
        from toast_lab.search import alpa

        return alpa.run(recorder, seed, self)


@register
@dataclasses.dataclass(frozen=True)
class Beam(options.BeamOptions, Method):
    """The best few plans, each extended by every action, until none gets better."""

    name = "beam"

    def run(self, recorder: Recorder, seed: int) -> Status:
        """Search until the budget ends or ``patience`` restarts in a row bring no better plan."""
        from toast_lab.search import beam

        return beam.run(recorder, seed, self)


@register
@dataclasses.dataclass(frozen=True)
class RandomWalk(options.RandomWalkOptions, Method):
    """Random action sequences: the baseline that every search has to beat."""

    name = "random"

    def run(self, recorder: Recorder, seed: int) -> Status:
        """Walk until the budget ends or ``patience`` walks in a row bring no new sharding."""
        from toast_lab.search import random_walk

        return random_walk.run(recorder, seed, self)


@register
@dataclasses.dataclass(frozen=True)
class Exhaustive(options.ExhaustiveOptions, Method):
    """Every distinct sharding that no bound rules out: proves the optimum of small programs."""

    name = "exhaustive"

    def run(self, recorder: Recorder, seed: int) -> Status:
        """Search until the optimum is proved."""
        from toast_lab.search import exhaustive

        return exhaustive.run(recorder, seed, self)


@register
@dataclasses.dataclass(frozen=True)
class Manual(options.ManualOptions, Method):
    """Expert plans in all sensible combinations, or the actions that you give, in order."""

    name = "manual"
    by_hand = True

    def run(self, recorder: Recorder, seed: int) -> Status:
        """Price the plans or actions that the user gave."""
        from toast_lab.search import manual

        return manual.run(recorder, self)
