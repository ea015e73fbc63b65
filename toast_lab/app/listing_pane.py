"""The program listing as a component: coloured dims, selection both ways, no HTML from names."""

from __future__ import annotations

from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app.look import MONO
from toast_lab.conflicts.analysis import Analysis
from toast_lab.views.program_table import Line, program_lines


class ListingPane(JSComponent):
    """Lines of ``program_lines``; text reaches the page as text nodes only."""

    lines = param.List(default=[], doc="[op, [[text, hue], ...], where]")
    chosen = param.List(default=[], doc="ops that are selected")
    picked = param.List(default=[], doc="[op, counter] of the last click")

    _esm = """
export function render({ model }) {
  const root = document.createElement('div')
  root.className = 'listing'
  root.setAttribute('role', 'listbox')
  root.setAttribute('aria-label', 'program listing')
  let clicks = 0
  const rows = new Map()
  function fill() {
    rows.clear()
    const all = document.createDocumentFragment()
    for (const [op, segments, where] of model.lines) {
      const row = document.createElement('div')
      row.className = 'row'
      row.tabIndex = 0
      row.setAttribute('role', 'option')
      const code = document.createElement('span')
      code.className = 'code'
      for (const [text, hue] of segments) {
        const piece = document.createElement('span')
        piece.textContent = text
        if (hue) { piece.style.color = hue; piece.style.fontWeight = '650' }
        code.appendChild(piece)
      }
      const place = document.createElement('span')
      place.className = 'where'
      place.textContent = where
      row.append(code, place)
      const pick = () => { model.send_msg([op, ++clicks]) }
      row.addEventListener('click', pick)
      row.addEventListener('keydown', (e) => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); pick() } })
      rows.set(op, row)
      all.appendChild(row)
    }
    root.replaceChildren(all)
    mark()
  }
  function mark() {
    const wanted = new Set(model.chosen)
    let first = null
    for (const [op, row] of rows) {
      const on = wanted.has(op)
      row.classList.toggle('on', on)
      row.setAttribute('aria-selected', String(on))
      if (on && first === null) first = row
    }
    if (first) {
      const top = first.offsetTop, view = root.scrollTop
      if (top < view || top > view + root.clientHeight - 24) root.scrollTop = Math.max(0, top - root.clientHeight / 3)
    }
  }
  model.on('lines', fill)
  model.on('chosen', mark)
  fill()
  return root
}
"""
    _stylesheets = [  # noqa: RUF012
        f"""
:host {{ display: block; height: 100%; }}
.listing {{ position: relative; height: 100%; overflow: auto; font-family: {MONO}; font-size: 12px;
  line-height: 20px; color: var(--tl-ink, #1c2430); }}
.row {{ display: flex; background: var(--tl-card, #fff); gap: 24px; padding: 0 8px; cursor: pointer; white-space: pre;
  content-visibility: auto;
  contain-intrinsic-height: 20px; border-left: 3px solid transparent; width: max-content;
  min-width: 100%; box-sizing: border-box; }}
.row:hover {{ background: var(--tl-soft, #eef3f9); }}
.row:focus-visible {{ outline: 1px solid var(--tl-accent, #1f6feb); outline-offset: -1px; }}
.row.on {{ background: var(--tl-on, #e3eefc); border-left-color: var(--tl-accent, #1f6feb); }}
.code {{ flex: 1 0 auto; }}
.where {{ color: var(--tl-quiet, #5b6675); position: sticky; right: 8px; background: inherit; }}
"""
    ]

    def _handle_msg(self, data: Any) -> None:
        self.picked = list(data)  # at once and in order with other clicks, as a change of the parameter is not

    def fill(self, analysis: Analysis) -> list[Line]:
        """Show a program; gives the lines."""
        found = program_lines(analysis)
        self.lines = [[line.op, [list(s) for s in line.segments], line.where] for line in found]
        return found


def listing_pane(**kwargs: Any) -> ListingPane:
    """A listing that fills what holds it."""
    return ListingPane(sizing_mode="stretch_both", margin=0, **kwargs)
