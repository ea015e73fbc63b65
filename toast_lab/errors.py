"""Every error that TOAST Lab raises on purpose, and two helpers for useful messages.

A message names the place, the cause and a remedy, in this order. A check collects every offender
before it raises, so that one round of fixes is enough. Outcomes that a search must expect, such as
a program that does not fit into memory, are statuses of its result and not errors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ToastError(Exception):
    """Base of all errors below; catch it to tell invalid input from a defect of TOAST Lab.

    Attributes:
        message: The full text, as given by `str`.

    Examples:
        >>> import toast_lab as tl
        >>> try:
        ...     tl.load("trasformer")
        ... except tl.ToastError as error:
        ...     print(error.message.split(";")[0])
        no built-in model is called 'trasformer' (did you mean "transformer"?)
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class FrontendError(ToastError):
    """The user's function, file or module could not be turned into StableHLO."""


class UnsupportedOp(ToastError):
    """A program contains an op whose meaning has to be known but is not."""


class InvalidPlan(ToastError):
    """A plan cannot be carried out.

    A size does not divide, or an axis is used twice or does not exist.
    """


class InvalidProblem(ToastError):
    """Mesh, machine, search method or budget are invalid or do not fit together."""


class InvalidInput(ToastError):
    """A function was given the wrong kind of argument, or one that it does not have."""


class RunFailed(ToastError):
    """The child process that compiles or executes a plan ended without a result."""


class RunInterrupted(RunFailed):
    """The child process was killed or took too long, which says nothing about what it ran."""


class StoreError(ToastError):
    """The file of kept results cannot be used.

    It cannot be opened, read or written, or another process is writing to it.
    """


class NotSaved(ToastError):
    """There is a result, but the file for it could not be written."""


def join_offenders(offenders: Iterable[object], limit: int = 20) -> str:
    """Write offenders one per line; beyond `limit` of them, say how many are left out.

    >>> print(join_offenders(["%1 = add", "%2 = dot_general", "%3 = sort"], limit=2))
      %1 = add
      %2 = dot_general
      ... and 1 more
    """
    texts = [str(offender) for offender in offenders]
    lines = [f"  {text}" for text in texts[:limit]]
    if len(texts) > limit:
        lines.append(f"  ... and {len(texts) - limit} more")
    return "\n".join(lines)


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """A remark to append to an unknown name: the closest choices, or nothing if none is close.

    Nothing is close to a name that is no text.

    >>> print("unknown model: trasformer" + did_you_mean("trasformer", ["transformer", "mlp"]))
    unknown model: trasformer (did you mean "transformer"?)
    >>> did_you_mean("x", ["transformer", "mlp"])
    ''
    """
    if not isinstance(name, str):
        return ""
    by_folded = {choice.casefold(): choice for choice in sorted(set(choices))}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=3)
    if not close:
        return ""
    return " (did you mean " + " or ".join(f'"{by_folded[key]}"' for key in close) + "?)"
