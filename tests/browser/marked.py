"""Frames and numbers on screenshots, for the pictures of the documentation."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import Browser, Locator

HUE = "#c2185b"  #: of frames and numbers
# The part of an element that its scrolling parents do not cut off; left > right if there is none.
SEEN = """(element) => {
  const seen = element.getBoundingClientRect()
  let [left, top, right, bottom] = [seen.left, seen.top, seen.right, seen.bottom]
  for (let node = element; node; node = node.assignedSlot || node.parentNode || node.host) {
    if (!(node instanceof Element) || getComputedStyle(node).overflow === 'visible') continue
    const box = node.getBoundingClientRect()
    left = Math.max(left, box.left)
    top = Math.max(top, box.top)
    right = Math.min(right, box.right)
    bottom = Math.min(bottom, box.bottom)
  }
  return [left, top, right, bottom]
}"""


class Box(NamedTuple):
    """A rectangle on the screen, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


def around(*parts: Locator, margin: float = 2) -> Box:
    """The smallest box around the visible parts of some elements, plus a margin in pixels."""
    boxes = [Box(*part.evaluate(SEEN)) for part in parts]
    seen = [box for box in boxes if box.left < box.right and box.top < box.bottom]
    return Box(
        min(box.left for box in seen) - margin,
        min(box.top for box in seen) - margin,
        max(box.right for box in seen) + margin,
        max(box.bottom for box in seen) + margin,
    )


def mark(number: int, box: Box) -> str:
    """The SVG of a frame around a box, with its number to the left."""
    x, y = max(15, box.left - 11), (box.top + box.bottom) / 2
    return (
        f'<rect x="{box.left:.0f}" y="{box.top:.0f}" width="{box.right - box.left:.0f}" '
        f'height="{box.bottom - box.top:.0f}" rx="8" fill="none" stroke="{HUE}" '
        f'stroke-width="2.5"/><circle cx="{x:.0f}" cy="{y:.0f}" r="13" fill="{HUE}"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}" fill="white" font-weight="bold" font-size="15" '
        f'text-anchor="middle">{number}</text>'
    )


def marked(
    browser: Browser, screen: bytes, boxes: list[Box], *, below: str = "", strip: int = 0
) -> Image.Image:
    """Draw a frame and a number around places of a screenshot.

    Args:
        browser: the browser that draws the marks.
        screen: the screenshot, a PNG.
        boxes: the places to mark, in the order of their numbers.
        below: HTML that is put under the screenshot.
        strip: the height of ``below``, in pixels.
    """
    with Image.open(io.BytesIO(screen)) as whole:
        width, height = whole.size
    marks = "".join(mark(number, box) for number, box in enumerate(boxes, 1))
    source = base64.b64encode(screen).decode()
    sheet = browser.new_page(viewport={"width": width, "height": height + strip})
    sheet.set_content(
        '<meta charset="utf-8"><body style="margin:0;font:15px sans-serif;color:#1b2430">'
        f'<img src="data:image/png;base64,{source}" style="display:block">'
        f'<svg style="position:absolute;left:0;top:0" width="{width}" height="{height}">{marks}'
        f"</svg>{below}"
    )
    picture = Image.open(io.BytesIO(sheet.screenshot())).convert("RGB")
    sheet.close()
    return picture
