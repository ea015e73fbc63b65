"""Find names, ops and functions by text.

A regular expression can take forever, and Python cannot interrupt one, so ``matching`` is meant for
a child process (``toast_lab.isolate``). This module imports nothing that would slow its start.
"""

from __future__ import annotations

import re

from toast_lab.errors import ToastError

#: most characters of a pattern
LONGEST = 200


def matching(pattern: str, texts: list[str]) -> list[int]:
    """Indices of the texts in which a regular expression matches, case ignored.

    Raises ToastError, which says where the pattern is wrong.
    """
    if len(pattern) > LONGEST:
        raise ToastError(
            f"the pattern has {len(pattern)} characters; at most {LONGEST} are allowed"
        )
    try:
        expression = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise ToastError(
            f"{pattern!r} is not a regular expression: {error.msg}{where}. Correct it, or search "
            "for plain text."
        ) from None
    except (OverflowError, RecursionError) as error:
        raise ToastError(f"{pattern!r} is not a regular expression: {error}") from None
    return [index for index, text in enumerate(texts) if expression.search(text)]


def containing(word: str, texts: list[str]) -> list[int]:
    """Indices of the texts that contain a word, case ignored."""
    word = word.casefold()
    return [index for index, text in enumerate(texts) if word in text.casefold()]
