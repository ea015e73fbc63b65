"""The legend of the dimension graph.

It draws every mark as the picture does, and says what the mark means.
"""

from __future__ import annotations

from collections.abc import Sequence

from toast_lab.views.markup import Safe, h, join, quiet
from toast_lab.views.overlay import Overlay
from toast_lab.views.palette import ACCENT, CONFLICT, NEUTRAL, style


def graph_legend(folded: bool, overlay: Overlay | None = None) -> Safe:
    """Explain nodes, lanes, edges, conflicts, outlines, folds, the selection and the chain.

    Args:
        folded: whether a marker may stand for several names.
        overlay: the overlay that gives the hues; None: they are those of the colours.

    """
    first, second = style(0).hue, style(1).hue
    if overlay is not None:
        first, second = overlay.key[0][0] if overlay.key else NEUTRAL, NEUTRAL
    hue = style(0).hue
    square = h("rect", x="19", y="3", width="10", height="10", fill=second)
    lane = h("rect", x="4", y="0", width="26", height="16", fill=hue, fill_opacity="0.15")
    outline = {"fill": CONFLICT, "fill_opacity": "0.06", "stroke": CONFLICT}
    box = h("rect", x="3", y="2", width="28", height="12", stroke_dasharray="2 3", **outline)
    times = h("text", "×18", x="5", y="12", fill=NEUTRAL, font_size="12")
    ring = h("circle", cx="17", cy="8", r="6", fill="#fff", stroke=hue, stroke_width="4")
    conflict = _line(CONFLICT, stroke_width="2.2", stroke_dasharray="6 3")
    rows = [
        ((_dot(first), square), _FOLDED if folded else _SINGLE),
        (
            (lane,),
            "a lane is a colour: dims that are cut alike. Its marker's shape stands before its "
            "name",
        ),
        (
            (_line(hue, stroke_width="1.5"),),
            "a thin line is M: the dim continues from one op to the next. Program order runs down",
        ),
        (
            (conflict,),
            "a red dashed line, without direction, is a conflict: two dims of one colour on one "
            "tensor. There the lane splits into side 0 (left) and side 1 (right), and joins again "
            "where the conflict ends",
        ),
        ((box,), "an outline is a compatibility set: conflicts that one bit settles together"),
        (
            (times,),
            "×18 after a row or a colour: code that ran 18 times, or as many mirrored colours, "
            "shown as one",
        ),
        ((ring,), "a marker that is hollow and larger is selected"),
        (
            (_line(ACCENT, stroke_width="7", stroke_opacity="0.4"),),
            "a broad blue line is the shortest chain that gives both dims of a conflict one colour",
        ),
    ]
    if overlay is None:
        return _list(rows)
    steps = [((_dot(step_hue),), meaning) for step_hue, meaning in overlay.key]
    return join(quiet("Hue: ", overlay.about, "."), _list(steps), _list(rows))


_FOLDED = "a marker is all names of a colour in a row; the number counts them, none is one name"
_SINGLE = "a marker is one dimension name; the number tells names of a colour apart"


def _list(rows: Sequence[tuple[Sequence[Safe], str]]) -> Safe:
    size = {"width": "34", "height": "16", "viewBox": "0 0 34 16", "aria_hidden": "true"}
    terms = [join(h("dt", h("svg", *mark, **size)), h("dd", text)) for mark, text in rows]
    return h("dl", *terms, cls="legend")


def _dot(hue: str) -> Safe:
    return h("circle", cx="10", cy="8", r="5", fill=hue)


def _line(hue: str, **attributes: str) -> Safe:
    return h("path", d="M2 8 L32 8", stroke=hue, fill="none", **attributes)
