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
