"""The legend of the dimension graph.

It draws every mark as the picture does, and says what the mark means.
"""

from __future__ import annotations

from toast_lab.views.markup import Safe, h, join, quiet
from toast_lab.views.overlay import Overlay
from toast_lab.views.palette import ACCENT, CONFLICT, NEUTRAL, style


def graph_legend(folded: bool, overlay: Overlay | None = None) -> Safe:
    """Explain nodes, lanes, edges, conflicts, outlines, folds, the selection and the chain.

    Args:
        folded: whether a marker may stand for several names.
        overlay: the overlay that gives the hues; None: they are those of the colours.

    """
    first_style, second_style = style(0), style(1)
    if overlay is None:
        marker = _dots(first_style.hue, second_style.hue)
    else:
        marker = _dots(overlay.key[0][0] if overlay.key else NEUTRAL, NEUTRAL)
    rows = [
        (marker, _node_words(folded)),
        (
            _lane(first_style.hue),
            "a lane is a colour: dims that are cut alike. Its marker's shape stands before its "
            "name",
        ),
        (
            _line(first_style.hue),
            "a thin line is M: the dim continues from one op to the next. Program order runs down",
        ),
        (
            _line(CONFLICT, "6 3", 2.2),
            "a red dashed line, without direction, is a conflict: two dims of one colour on one "
            "tensor. There the lane splits into side 0 (left) and side 1 (right), and joins again "
            "where the conflict ends",
        ),
        (_box(), "an outline is a compatibility set: conflicts that one bit settles together"),
        (
            _times(),
            "×18 after a row or a colour: code that ran 18 times, or as many mirrored colours, "
            "shown as one",
        ),
        (_ring(first_style.hue), "a marker that is hollow and larger is selected"),
        (
            _line(ACCENT, "", 7, 0.4),
            "a broad blue line is the shortest chain that gives both dims of a conflict one colour",
        ),
    ]

    table = h(
        "dl", *[join([h("dt", mark), h("dd", meaning)]) for mark, meaning in rows], cls="legend"
    )
    scale: list[object] = []
    if overlay is not None:
        steps = [join([h("dt", _dots(hue)), h("dd", meaning)]) for hue, meaning in overlay.key]
        scale = [
            quiet("Hue: ", overlay.about, "."),
            h("dl", *steps, cls="legend"),
        ]
    return join([*scale, table])


def _node_words(folded: bool) -> str:
    if folded:
        return (
            "a marker is all names of a colour in a row; the number counts them, none is one name"
        )
    return "a marker is one dimension name; the number tells names of a colour apart"


def _svg(*children: Safe) -> Safe:
    return h("svg", *children, width="34", height="16", viewBox="0 0 34 16", aria_hidden="true")


def _dots(hue: str, square_hue: str = "") -> Safe:
    circle = h("circle", cx="10", cy="8", r="5", fill=hue)
    return _svg(
        circle,
        h("rect", x="19", y="3", width="10", height="10", fill=square_hue)
        if square_hue
        else Safe(""),
    )


def _lane(hue: str) -> Safe:
    return _svg(h("rect", x="4", y="0", width="26", height="16", fill=hue, fill_opacity="0.15"))


def _line(hue: str, dash: str = "", width: float = 1.5, opacity: float = 1.0) -> Safe:
    dash_attribute = {"stroke_dasharray": dash} if dash else {}
    return _svg(
        h(
            "path",
            d="M2 8 L32 8",
            stroke=hue,
            stroke_width=str(width),
            stroke_opacity=str(opacity),
            fill="none",
            **dash_attribute,
        )
    )


def _box() -> Safe:
    return _svg(
        h(
            "rect",
            x="3",
            y="2",
            width="28",
            height="12",
            fill=CONFLICT,
            fill_opacity="0.06",
            stroke=CONFLICT,
            stroke_dasharray="2 3",
        )
    )


def _times() -> Safe:
    return _svg(h("text", "×18", x="5", y="12", fill=NEUTRAL, font_size="12"))


def _ring(hue: str) -> Safe:
    return _svg(h("circle", cx="17", cy="8", r="6", fill="#fff", stroke=hue, stroke_width="4"))
