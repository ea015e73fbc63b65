"""What a step of the tour is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from toast_lab.app.session import Session

#: computed from the session's state; `code` stands between backticks
Words = Callable[[Session], str]
#: selected names and conflicts
Selected = tuple[tuple[int, ...], tuple[int, ...]]


class TourScene(NamedTuple):
    """What has to be loaded."""

    model: str
    mesh: str
    sizes: tuple[tuple[str, Any], ...] = ()
    machine: str = "tpu-v5e"


class TourTask(NamedTuple):
    """Something to do, recognised however it was done."""

    ask: Words
    done: Callable[[Session], bool]
    do: Callable[[Session], None]
    after: Words  #: said once it is done


class Quiz(NamedTuple):
    """A question whose answer is worked out from the program."""

    question: str
    options: Callable[[Session], list[str]]
    right: Callable[[Session], str]
    why: Words


@dataclasses.dataclass(frozen=True)
class Step:
    """One step.

    Public fields are what ``Tour.establish`` brings about and what the strip shows.
    """

    key: str
    title: str
    paper: str  #: figure, listing or section that it shows
    scene: TourScene
    page: str  #: step of the explorer
    target: tuple[str, ...]  #: keys of ``tour_strip.TARGETS``
    text: Words
    task: TourTask | None = None
    quiz: Quiz | None = None
    code: Words | None = None  #: lines shown beside the text
    #: the plan by hand that it begins with; None leaves it as it is
    actions: tuple[str, ...] | None = None
    select: Callable[[Session], Selected] | None = None
    level: str = ""  #: of the graph
    tab: str = ""  #: of the lower pane by hand: listing, collectives, devices
    tensor: Words | None = None  #: value whose devices are shown
    drawer: bool = False  #: the listing below is open


def nothing(_: Session) -> Selected:
    """The empty selection."""
    return (), ()


class Chapter(NamedTuple):
    """Steps on one subject."""

    title: str
    steps: tuple[Step, ...]
