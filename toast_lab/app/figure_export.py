"""Save a figure as PNG or SVG, in the browser.

Nothing is sent to the server or fetched from elsewhere.

BokehJS draws a view anew for an export, ``view.export("svg")`` into SVG elements,
``view.export("png")`` on a canvas, whatever the page draws on.  A picture is saved as it is on the
page, with its size and zoom.  PNG files get a white ground; SVG files have none, like the figures
themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app.look import FONT
from toast_lab.files import file_name


class FigureMenu(JSComponent):
    """Two small buttons.

    Of several visible figures of one name that one is meant which is nearest to them.
    """

    figure = param.String(default="", doc="name of the Bokeh model that is saved")
    file = param.String(default="figure", doc="name of the file without its ending")

    _esm = """
function found(name, near) {
  const all = []
  const walk = (view) => {
    if (view.model?.name === name && view.export\
 && view.el?.getBoundingClientRect().width > 0) all.push(view)
    for (const child of view.child_views ?? []) walk(child)
  }
  for (const root of Object.values(window.Bokeh?.index ?? {})) walk(root)
  const middle = (el) => { const b = el.getBoundingClientRect();\
 return [b.left + b.width / 2, b.top + b.height / 2] }
  const [x, y] = middle(near)
  const far = (view) => { const [a, b] = middle(view.el); return Math.hypot(a - x, b - y) }
  return all.sort((a, b) => far(a) - far(b))[0]
}
async function png(view) {
  const drawn = view.export('png', true).canvas
  const sheet = document.createElement('canvas')
  sheet.width = drawn.width
  sheet.height = drawn.height
  const context = sheet.getContext('2d')
  context.fillStyle = '#fff'
  context.fillRect(0, 0, sheet.width, sheet.height)
  context.drawImage(drawn, 0, 0)
  return new Promise((done, failed) => sheet.toBlob((blob) =>\
 blob ? done(blob) : failed(), 'image/png'))
}
function save(blob, name) {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10000)
}
export function render({ model }) {
  const root = document.createElement('div')
  root.className = 'save'
  for (const type of ['png', 'svg']) {
    const button = document.createElement('button')
    button.textContent = type.toUpperCase()
    const idle = `save this figure as ${type.toUpperCase()}`
    button.title = idle
    button.setAttribute('aria-label', `${model.figure}: save as ${type.toUpperCase()}`)
    button.addEventListener('click', async () => {
      const view = found(model.figure, root)
      button.title = view ? idle : 'there is no figure to save yet'
      if (!view) return
      save(await (type === 'png' ? png(view) : view.export('svg', false).to_blob()),\
 `${model.file}.${type}`)
    })
    root.append(button)
  }
  return root
}
"""
    _stylesheets = [  # noqa: RUF012
        f"""
:host {{ flex: 0 0 auto; }}
.save {{ display: flex; gap: 4px; }}
button {{ font-family: {FONT}; font-size: 11px; line-height: 1; padding: 5px 7px;\
 border-radius: 5px; cursor: pointer;
  border: 1px solid var(--tl-line, #dfe5ec); background: var(--tl-card, #fff);\
 color: var(--tl-quiet, #5b6675); }}
button:hover {{ background: var(--tl-soft, #eef3f9); color: var(--tl-ink, #1c2430); }}
button:focus-visible {{ outline: 2px solid var(--tl-accent, #1f6feb); outline-offset: 1px; }}
"""
    ]


def figure_menu(figure_or_getter: Any, name: str, **kwargs: Any) -> FigureMenu:
    """Buttons that save a figure of the page.

    Args:
        figure_or_getter: a Bokeh figure or layout with a name, a function that gives one, or the
            name itself; figures that are drawn anew keep their name.
        name: of the file, without its ending.
        kwargs: for the component.

    Raises:
        ValueError: the figure has no name.
    """
    given = figure_or_getter() if isinstance(figure_or_getter, Callable) else figure_or_getter  # type: ignore[arg-type]
    figure = given if isinstance(given, str) else given.name
    if not figure:
        raise ValueError(f"the figure that {name!r} saves has no name; give it one")
    kwargs = {"margin": (2, 4), "width": 92, "height": 26, "sizing_mode": "fixed", **kwargs}
    return FigureMenu(figure=figure, file=file_name(name), **kwargs)
