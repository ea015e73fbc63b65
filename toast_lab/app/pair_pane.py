"""Two listings side by side as a component; text reaches the page as text nodes only."""

from __future__ import annotations

from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app.look import MONO
from toast_lab.views.side_by_side import Pair


class PairPane(JSComponent):
    """Lines of two plans in two columns that scroll together.

    Lines that differ are marked and carry a sign.
    """

    rows = param.List(
        default=[], doc="[op, left, right, differs, where], or [number of lines left out]"
    )
    chosen = param.List(default=[], doc="ops that are selected")
    picked = param.List(default=[], doc="[op, counter] of the last click")

    _esm = """
const SENDS = /(all_gather|all_reduce|reduce_scatter|all_to_all|collective_permute)/
function cell(text, sign, differs) {
  const box = document.createElement('div')
  box.className = 'cell' + (differs ? (text ? ' differs' : ' missing') : '')
  const mark = document.createElement('span')
  mark.className = 'sign'
  mark.textContent = differs && text ? sign : ' '
  const code = document.createElement('span')
  code.className = 'code'
  for (const [i, part] of text.split(SENDS).entries()) {
    const piece = document.createElement('span')
    piece.textContent = part
    if (i % 2) piece.className = 'sends'
    code.append(piece)
  }
  box.append(mark, code)
  return box
}
export function render({ model }) {
  const root = document.createElement('div')
  root.className = 'pairs'
  root.setAttribute('role', 'listbox')
  root.setAttribute('aria-label', 'listings of plan A and plan B')
  let clicks = 0
  let lines = []
  function fill() {
    lines = []
    const all = document.createDocumentFragment()
    for (const row of model.rows) {
      const line = document.createElement('div')
      if (row.length === 1) {
        line.className = 'gap'
        line.textContent = `${row[0]} equal ${row[0] === 1 ? 'line' : 'lines'}`
      } else {
        const [op, left, right, differs, where] = row
        line.className = 'pair'
        line.title = where
        line.tabIndex = 0
        line.setAttribute('role', 'option')
        line.append(cell(left, '−', differs), cell(right, '+', differs))
        const pick = () => { model.picked = [op, ++clicks] }
        line.addEventListener('click', pick)
        line.addEventListener('keydown', (e) => {
          if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); pick() }
        })
        lines.push([op, line])
      }
      all.append(line)
    }
    root.replaceChildren(all)
    root.scrollTop = 0
    mark()
  }
  function mark() {
    const wanted = new Set(model.chosen)
    for (const [op, line] of lines) line.classList.toggle('on', wanted.has(op))
  }
  model.on('rows', fill)
  model.on('chosen', mark)
  fill()
  return root
}
"""
    _stylesheets = [  # noqa: RUF012
        f"""
:host {{ display: block; height: 100%; }}
.pairs {{ height: 100%; overflow: auto; font-family: {MONO}; font-size: 11.5px; line-height: 17px;
  color: var(--tl-ink, #1c2430); }}
.pair {{ display: grid; grid-template-columns: 1fr 1fr; cursor: pointer; content-visibility: auto;
  contain-intrinsic-height: 17px; border-left: 3px solid transparent; }}
.pair:hover {{ background: var(--tl-soft, #eef3f9); }}
.pair:focus-visible {{ outline: 1px solid var(--tl-accent, #1f6feb); outline-offset: -1px; }}
.pair.on {{ background: var(--tl-on, #e3eefc); border-left-color: var(--tl-accent, #1f6feb); }}
.cell {{ display: flex; gap: 4px; padding: 0 6px; min-width: 0;\
 border-right: 1px solid var(--tl-line, #dfe5ec); }}
.cell.differs {{ background: rgb(199 119 0 / 16%); }}
.cell.missing {{ background: repeating-linear-gradient(135deg, transparent 0 5px,\
 rgb(107 119 133 / 10%) 5px 7px); }}
.code {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
.sign {{ flex: 0 0 10px; white-space: pre; color: var(--tl-quiet, #5b6675); }}
.sends {{ color: #b25a00; font-weight: 650; }}
.gap {{ padding: 1px 20px; font-size: 11px; color: var(--tl-quiet, #5b6675);\
 background: var(--tl-soft, #eef3f9); }}
"""
    ]

    def fill(self, pairs: list[Pair | int]) -> None:
        """Show rows; a number stands for lines left out."""
        self.rows = [
            [p] if isinstance(p, int) else [p.op, p.left, p.right, p.differs, p.where]
            for p in pairs
        ]


def pair_pane(**kwargs: Any) -> PairPane:
    """Two listings that fill what holds them."""
    return PairPane(sizing_mode="stretch_both", margin=0, **kwargs)
