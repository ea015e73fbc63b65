"""Writes the files that a command was asked for.

A failure to write one is reported after the result, not instead of it.

``keep`` tries the path, then a new file in the temporary folder, and finally prints the content
itself. After the result has been printed, ``cli.main`` reports the failures on stderr
(``say_failures``), and the command fails.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from toast_lab.errors import NotSaved, ToastError
from toast_lab.files import not_saved, write_whole

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.sharding.plan import ShardingPlan


def keep(
    args: Namespace,
    content: str,
    path: str,
    write: Callable[[str], object],
    *,
    last_resort: Callable[[], str] | None = None,
) -> bool:
    """Write a file, and tell whether it was written to ``path``.

    If stderr is a terminal, the path is printed there.

    Args:
        args: arguments of the command, in which failures are recorded.
        content: name of the file's content, in a word or two: "plan".
        path: path of the file.
        write: function that writes to a path; raises NotSaved (or OSError).
        last_resort: gives the text to print if the file cannot be written anywhere: how to make the
            content again, or all of it.
    """
    try:
        write(path)
    except (NotSaved, OSError) as error:
        refusal = error if isinstance(error, NotSaved) else not_saved(path, f"the {content}", error)
        keep_elsewhere(
            args,
            content,
            refusal,
            write,
            last_resort=last_resort,
            name=os.path.basename(path),
        )
        return False
    if sys.stderr.isatty():
        print(f"{content} written to {path}", file=sys.stderr)
    return True


def keep_text(args: Namespace, content: str, path: str, text: str) -> bool:
    """``keep`` for a text, which is printed if it cannot be written anywhere."""
    return keep(
        args,
        content,
        path,
        lambda target: write_whole(target, text, f"the {content}"),
        last_resort=lambda: f"It is:\n{text}",
    )


def keep_table(args: Namespace, path: str, csv: str) -> bool:
    """``keep`` for a table as CSV."""
    return keep_text(args, "table", path, csv)


def keep_elsewhere(
    args: Namespace,
    content: str,
    error: NotSaved,
    write: Callable[[str], object],
    *,
    last_resort: Callable[[], str] | None = None,
    name: str = "result.json",
) -> None:
    """After a failure, write to a new file in the temporary folder.

    If that fails, too, use the last resort. The failure is recorded in ``args``.
    """
    try:
        replacement = os.path.join(
            tempfile.gettempdir(), f"toast-lab-{secrets.token_hex(4)}-{name}"
        )
        write(replacement)
        outcome = f"Kept in {replacement} instead: the {content}"
    except (NotSaved, OSError) as second_error:
        outcome = f"Nor could it be written to the temporary folder: {second_error}. "
        outcome += f"The {content} is lost" if last_resort is None else last_resort()
    _failures(args).append(f"{error}. {outcome}")


def keep_plan(args: Namespace, plan: ShardingPlan, problem: Problem) -> None:
    """Write the plan to the file of ``--save``, if it was given."""
    from toast_lab.sharding import plan_file

    if args.save:
        write = functools.partial(plan_file.save, plan)
        keep(args, "plan", args.save, write, last_resort=lambda: typed_again(plan, problem))


def typed_again(plan: ShardingPlan, problem: Problem) -> str:
    """A text from which a plan can be recovered without a file.

    These are its actions, if they alone give the plan, else the whole plan as JSON.
    """
    from toast_lab.sharding import plan_file, portable
    from toast_lab.sharding.plan import pinned_texts, plan_of_actions

    actions = plan.actions[len(pinned_texts(problem.space)) :]
    try:
        retyped = plan_of_actions(problem.space, actions)
    except ToastError:
        retyped = None
    if retyped is not None and retyped.sharding.same_as(plan.sharding):
        quoted = " ".join(f'"{action}"' for action in actions)
        return (
            f'These actions give the plan again: "toast-lab price MODEL --actions {quoted} '
            '--save FILE"'
        )
    return "Copy the plan from here into a file:\n" + portable.file_text(plan_file.to_json(plan))


def say_later(args: Namespace, failure: str) -> None:
    """Record a failure, which is printed after the result and makes the command fail."""
    _failures(args).append(failure)


def say_failures(args: Namespace) -> bool:
    """Print to stderr which files could not be written, and tell whether there were any."""
    failures = _failures(args)
    for failure in failures:
        print(f"toast-lab: {failure}", file=sys.stderr)
    return bool(failures)


def silence() -> None:
    """Discard all further output, including Python's flush at exit.

    To be called if the reader of stdout is gone, or its disk is full.
    """
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failures(args: Namespace) -> list[str]:
    failures: list[str] = vars(args).setdefault("not_saved", [])
    return failures
