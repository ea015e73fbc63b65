"""The parts of a step of the tour: scene, task, question, texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from toast_lab.app.session import Session

#: a text computed from the session's state; code is written between backticks
Words = Callable[[Session], str]
#: selected names and conflicts
Selected = tuple[tuple[int, ...], tuple[int, ...]]


class TourScene(NamedTuple):
    """The program and problem that a step needs."""

    model: str
    mesh: str
    sizes: tuple[tuple[str, Any], ...] = ()
    machine: str = "tpu-v5e"


class TourTask(NamedTuple):
    """A task for the user, recognised as done in whatever way it was done."""

    ask: Words
    done: Callable[[Session], bool]
    do: Callable[[Session], None]
    after: Words  #: shown once it is done


class Quiz(NamedTuple):
    """A question whose answer is computed from the program."""

    question: str
    options: Callable[[Session], list[str]]
    right: Callable[[Session], str]
    why: Words


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the tour.

    Its fields are the state that ``Tour.establish`` sets up, and the contents of the tour's strip.
    """

    key: str
    title: str
    paper: str  #: figure, listing or section of the paper that the step shows
    scene: TourScene
    page: str  #: key of the explorer's page
    target: tuple[str, ...]  #: parts of the page to outline, keys of ``tour_strip.TARGETS``
    text: Words
    task: TourTask | None = None
    quiz: Quiz | None = None
    code: Words | None = None  #: lines shown beside the text
    #: the plan by hand at the beginning of the step; None leaves it as it is
    actions: tuple[str, ...] | None = None
    select: Callable[[Session], Selected] | None = None
    level: str = ""  #: of the graph
    #: below the board: listing, plan, collectives, devices or beside; of the search page: race
    tab: str = ""
    tensor: Words | None = None  #: name of the value whose parts the devices tab shows
    drawer: bool = False  #: whether the listing below is open


class Chapter(NamedTuple):
    """The steps on one subject."""

    title: str
    steps: tuple[Step, ...]


class FigureEntry(NamedTuple):
    """One row of the index of the paper's figures."""

    figure: str
    shows: str
    step: str  #: key of the step
