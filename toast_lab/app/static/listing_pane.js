const ROW = 20, SPARE = 24
export function render({ model }) {
  const root = document.createElement('div')
  root.className = model.kind
  root.setAttribute('role', 'listbox')
  root.setAttribute('aria-label', model.kind === 'listing' ? 'program listing' : 'source code')
  const sheet = document.createElement('div')
  sheet.className = 'sheet'
  root.appendChild(sheet)
  let clicks = 0, lines = [], at = new Map(), wanted = new Set(), rows = new Map(), focused = -1
  let isMissed = false  // lines were chosen while nobody could see them
  const pick = (i) => { model.send_msg([lines[i][0], ++clicks]) }
  function made(i) {
    const [op, segments, where] = lines[i]
    const row = document.createElement('div')
    row.className = 'row'
    row.tabIndex = 0
    row.style.top = `${i * ROW}px`
    row.setAttribute('role', 'option')
    row.setAttribute('aria-posinset', i + 1)
    row.setAttribute('aria-setsize', lines.length)
    const code = document.createElement('span')
    code.className = 'code'
    for (const [text, hue] of segments) {
      const piece = document.createElement('span')
      piece.textContent = text
      if (hue) { piece.className = 'dim'; piece.style.setProperty('--hue', hue) }
      code.appendChild(piece)
    }
    const place = document.createElement('span')
    place.className = 'where'
    place.textContent = where
    row.append(code, place)
    row.addEventListener('click', () => pick(i))
    row.addEventListener('focus', () => { focused = i })
    row.addEventListener('keydown', (e) => {
      if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); pick(i) }
      const to = e.key === 'ArrowDown' ? i + 1 : e.key === 'ArrowUp' ? i - 1 : -1
      if (to >= 0 && to < lines.length) { e.preventDefault(); show(to); fill();
        rows.get(to)?.focus() }
    })
    dress(i, row)
    return row
  }
  function dress(i, row) {
    const on = wanted.has(lines[i][0])
    row.classList.toggle('on', on)
    row.setAttribute('aria-selected', String(on))
  }
  function span() {
    const first = Math.floor(root.scrollTop / ROW), n = Math.ceil((root.clientHeight || 400) / ROW)
    return [first, Math.min(first + n, lines.length)]
  }
  function fill() {
    const [a, b] = span()
    const first = Math.max(0, a - SPARE), last = Math.min(lines.length, b + SPARE)
    for (const [i, row] of rows) {
      if ((i < first || i >= last) && i !== focused) { row.remove(); rows.delete(i) }
    }
    const fresh = document.createDocumentFragment()
    for (let i = first; i < last; i++) {
      if (!rows.has(i)) { const row = made(i); rows.set(i, row); fresh.appendChild(row) }
    }
    sheet.appendChild(fresh)
  }
  function show(i) {
    const top = i * ROW, view = root.scrollTop, high = root.clientHeight
    if (top < view) root.scrollTop = top
    else if (top > view + high - ROW) root.scrollTop = top - high + ROW
  }
  function load() {
    lines = JSON.parse(model.packed)
    at = new Map()
    let width = 0
    lines.forEach(([op, segments, where], i) => {
      if (!at.has(op)) at.set(op, i)
      let n = where.length + 6
      for (const s of segments) n += s[0].length
      if (n > width) width = n
    })
    rows = new Map()
    focused = -1
    sheet.replaceChildren()
    sheet.style.height = `${lines.length * ROW}px`
    sheet.style.minWidth = `${width}ch`
    root.scrollTop = 0
    mark()
  }
  function mark() {
    wanted = new Set(model.chosen)
    bring()
    fill()
    for (const [i, row] of rows) dress(i, row)
  }
  function bring() {
    isMissed = !root.clientHeight
    const places = []
    for (const op of wanted) { const i = at.get(op); if (i !== undefined) places.push(i) }
    if (isMissed || !places.length) return
    const [a, b] = span()
    if (!places.some((i) => i >= a && i < b - 1)) {
      root.scrollTop = Math.max(0, Math.min(...places) * ROW - root.clientHeight / 3)
    }
  }
  function resized() {
    if (isMissed) bring()
    fill()
  }
  root.addEventListener('scroll', fill, { passive: true })
  new ResizeObserver(resized).observe(root)
  model.on('packed', load)
  model.on('chosen', mark)
  load()
  return root
}
