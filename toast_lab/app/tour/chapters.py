"""The chapters of the tour, as they are written in ``chapters/*.toml``.

A chapter has a title, lists that its texts and plans refer to (``names``), scenes, of which the
first is that of every step that names no other, and steps: the fields of ``Step``, whose plan by
hand is empty unless they say otherwise. ``shared.toml`` has scenes and tasks for all of them.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from toast_lab.app.tour import words
from toast_lab.app.tour.step import Chapter, FigureEntry, Quiz, Step, TourScene, TourTask
from toast_lab.models.registry import WORTHWHILE_SIZES

ORDER = ("first", "mlp", "xxt", "attention", "transformer")


def chapters() -> tuple[Chapter, ...]:
    """All chapters, in order."""
    return tuple(map(_chapter, ORDER))


def figures() -> tuple[FigureEntry, ...]:
    """The index of the paper's figures and listings."""
    return tuple(FigureEntry(figure, *entry) for figure, entry in read("figures").items())


@functools.cache
def read(name: str) -> Mapping[str, Any]:
    """The content of ``chapters/NAME.toml``."""
    path = files("toast_lab.app.tour") / "chapters" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _chapter(name: str) -> Chapter:
    content, shared = read(name), read("shared")
    lists = content.get("names", {})
    scenes = {
        key: _scene(scene) for key, scene in [*content["scenes"].items(), *shared["scenes"].items()]
    }
    return Chapter(
        content["title"],
        tuple(_step(dict(step), scenes, lists, shared["tasks"]) for step in content["steps"]),
    )


def _scene(fields: Mapping[str, Any]) -> TourScene:
    """A scene; its program has the sizes at which sharding pays, unless it says otherwise."""
    model = fields["model"]
    sizes = {**WORTHWHILE_SIZES.get(model, {}), **fields.get("sizes", {})}
    return TourScene(model, fields["mesh"], tuple(sizes.items()))


def _step(
    fields: dict[str, Any],
    scenes: Mapping[str, TourScene],
    lists: Mapping[str, Any],
    tasks: Mapping[str, Any],
) -> Step:
    text = functools.partial(words.text, lists=lists)
    value = functools.partial(words.value, lists=lists)
    scene = scenes[fields.pop("scene", next(iter(scenes)))]
    actions = words.of_lists(fields.pop("actions", "[]"), lists)
    for name in fields.keys() & {"select", "code", "tensor"}:
        fields[name] = value(fields[name])
    if task := fields.pop("task", None):
        task = tasks[task] if isinstance(task, str) else task
        fields["task"] = TourTask(
            ask=text(task["ask"]),
            done=value(task["done"]),
            do=value(task["do"]),
            after=text(task["after"]),
        )
    if quiz := fields.pop("quiz", None):
        fields["quiz"] = Quiz(
            quiz["question"],
            options=value(quiz["options"]),
            right=value(quiz["right"]),
            why=text(quiz["why"]),
        )
    return Step(
        scene=scene,
        target=tuple(fields.pop("target")),
        text=text(fields.pop("text")),
        actions=None if fields.pop("keeps_actions", False) else actions,
        **fields,
    )
