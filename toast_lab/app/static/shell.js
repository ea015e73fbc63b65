// What the page does by itself, without asking the server: the theme, the keys, the address bar, the table of keys.
// Given: commands [[id, [key, ...], words, group], ...], query [text, push], title, awaited_rest.
// Gives: command [id, n], arrived [search, n], rested.

const THEME_WORDS = { auto: '◐', light: '☀', dark: '☾' }

// The element under the whole explorer; inside a notebook it carries the theme, since the page is not ours.
function outermost(element) {
  let host = element
  for (let root = host.getRootNode(); root instanceof ShadowRoot; root = host.getRootNode()) host = root.host
  return host
}

// All elements that fit, shadow roots included.
function* find(root, selector) {
  for (const element of root.querySelectorAll('*')) {
    if (element.matches(selector)) yield element
    if (element.shadowRoot) yield* find(element.shadowRoot, selector)
  }
}

function shown(element) { return element.getClientRects().length > 0 }

function focused() {
  let element = document.activeElement
  while (element?.shadowRoot?.activeElement) element = element.shadowRoot.activeElement
  return element
}

function typing(target) {
  if (target.isContentEditable || ['TEXTAREA', 'SELECT'].includes(target.tagName)) return true
  return target.tagName === 'INPUT' && !['checkbox', 'radio', 'button', 'range'].includes(target.type)
}

// What space and Enter press by themselves.
function pressed(target) { return target.matches('button, a[href], input, summary, [role=option], [role=button], [role=tab]') }

function keyOf(event) {
  const key = event.key === ' ' ? 'Space' : event.key.length === 1 ? event.key.toLowerCase() : event.key
  const shifted = event.shiftKey && (event.ctrlKey || event.metaKey) ? 'Shift+' : ''
  return (event.ctrlKey || event.metaKey ? 'Ctrl+' : '') + shifted + (event.altKey ? 'Alt+' : '') + key
}

// Drawn, since fonts that have such a sign are not everywhere.
const LINK = 'M6.5 9.5l3-3M7 4.5l1.6-1.6a3 3 0 0 1 4.4 4.2L11.4 9M9 11.5l-1.6 1.6a3 3 0 0 1-4.4-4.2L4.6 7'
function drawn(path) {
  const space = 'http://www.w3.org/2000/svg'
  const svg = document.createElementNS(space, 'svg')
  svg.setAttribute('viewBox', '0 0 16 16')
  svg.setAttribute('width', '16')
  const line = document.createElementNS(space, 'path')
  for (const [k, v] of Object.entries({ d: path, fill: 'none', stroke: 'currentColor', 'stroke-width': '1.5', 'stroke-linecap': 'round' })) {
    line.setAttribute(k, v)
  }
  svg.append(line)
  return svg
}

function button(label, symbol, run) {
  const made = document.createElement('button')
  made.type = 'button'
  made.append(symbol)
  made.setAttribute('aria-label', label)
  made.title = label
  made.addEventListener('click', run)
  return made
}

export function render({ model, view, el }) {
  layoutOnce(view)
  keepKnown(view.model.document)
  const lost = lostConnection(view.model.document)
  const held = heldMessages(view)
  const rest = atRest(held, () => { model.rested = model.awaited_rest })
  let count = 0
  const send = (id) => { model.command = [id, ++count] }
  const bar = document.createElement('div')
  bar.className = 'bar'

  // -- theme ------------------------------------------------------------------------------------
  const theme = window.tlTheme
  const themeButton = button('theme', '◐', () => turn())
  function turn() {
    const system = matchMedia('(prefers-color-scheme: dark)').matches ? ['light', 'dark'] : ['dark', 'light']
    const order = ['auto', ...system]
    theme.choose(order[(order.indexOf(theme.chosen()) + 1) % order.length])
  }
  function showTheme() {
    const chosen = theme.chosen()
    const host = outermost(el)
    if (host.dataset) host.dataset.tlTheme = theme.now()
    themeButton.textContent = THEME_WORDS[chosen]
    const label = `theme: ${chosen === 'auto' ? `as the system, ${theme.now()}` : chosen} (t changes it)`
    themeButton.title = label
    themeButton.setAttribute('aria-label', label)
  }

  // -- link -------------------------------------------------------------------------------------
  const note = document.createElement('span')
  note.className = 'note'
  note.setAttribute('role', 'status')
  async function copy() {
    const query = new URLSearchParams(window.location.search)
    query.delete('state')  // the key of this page's own state is nobody else's
    const link = `${window.location.origin}${window.location.pathname}?${query}`
    try {
      await navigator.clipboard.writeText(link)
    } catch {
      const field = document.createElement('textarea')  // the clipboard is closed to pages without https
      field.value = link
      el.append(field)
      field.select()
      document.execCommand('copy')
      field.remove()
    }
    note.textContent = 'link copied'
    setTimeout(() => { note.textContent = '' }, 2000)
  }
  function showQuery() {
    const [text, push] = model.query
    if (!text || `?${text}` === window.location.search) return
    const url = `${window.location.pathname}?${text}${window.location.hash}`
    if (push) window.history.pushState({}, '', url)
    else window.history.replaceState({}, '', url)
  }
  // A title is text, whatever is in it
  function showTitle() {
    if (!model.framed) document.title = model.title ? `${model.title} · TOAST Lab` : 'TOAST Lab'
  }
  const back = () => { model.arrived = [window.location.search.slice(0, 8192), ++count] }

  // -- table of keys ----------------------------------------------------------------------------
  const sheet = document.createElement('dialog')
  sheet.setAttribute('aria-label', 'shortcuts')
  function fillSheet() {
    const head = document.createElement('h2')
    head.textContent = 'Keys'
    const body = document.createElement('div')
    body.className = 'keys'
    let group = ''
    for (const [, keys, words, of] of model.commands) {
      if (of !== group) {
        const title = document.createElement('h3')
        title.textContent = group = of
        body.append(title)
      }
      const row = document.createElement('div')
      row.className = 'row'
      const text = document.createElement('span')
      text.textContent = words
      const caps = document.createElement('span')
      for (const key of keys) {
        const cap = document.createElement('kbd')
        cap.textContent = key
        caps.append(cap)
      }
      row.append(text, caps)
      body.append(row)
    }
    const close = button('close', 'Close', () => sheet.close())
    sheet.replaceChildren(head, body, close)
  }
  sheet.addEventListener('click', (event) => { if (event.target === sheet) sheet.close() })
  const toggleSheet = () => { if (sheet.open) sheet.close(); else { fillSheet(); sheet.showModal() } }

  // -- keys -------------------------------------------------------------------------------------
  function search() {
    send('search')
    const end = Date.now() + 4000  // the graph's page is made on the first visit
    const look = () => {
      const field = [...find(document, 'input[type=text]')].find((f) => shown(f) && labelOf(f).startsWith('find'))
      if (field) { field.focus(); field.select() } else if (Date.now() < end) setTimeout(look, 60)
    }
    setTimeout(look, 30)
  }
  const labelOf = (field) => (field.getRootNode().querySelector('label')?.textContent ?? '').trim()
  const here = { help: toggleSheet, theme: turn, link: copy, search }
  function pressedKey(event) {
    const target = event.composedPath()[0]
    if (event.defaultPrevented || !(target instanceof Element)) return
    const key = keyOf(event)
    const mine = el.isConnected && (!model.framed || outermost(el).contains(event.target))
    if (!mine) return
    if (key === 'Escape') {
      if (sheet.open) return  // the dialog closes itself
      if (typing(target)) { target.blur(); return }
    }
    if (typing(target) || sheet.open || (pressed(target) && ['Space', 'Enter'].includes(key))) return
    const found = model.commands.find(([, keys]) => keys.some((k) => k === key || (k === 'Esc' && key === 'Escape')))
    if (!found) return
    event.preventDefault()
    if (here[found[0]]) here[found[0]]()
    else send(found[0])
  }
  // A button that was clicked keeps the focus, and space would press it again instead of running the search.
  const release = (event) => {
    const element = focused()
    if (event.detail > 0 && element?.tagName === 'BUTTON' && event.composedPath().includes(element)) element.blur()
  }

  bar.append(
    note,
    button('copy a link to this view (l)', drawn(LINK), copy),
    button('shortcuts (?)', '?', toggleSheet),
    themeButton,
  )
  model.on('query', showQuery)
  model.on('title', showTitle)
  model.on('awaited_rest', rest.wait)
  if (model.rested !== model.awaited_rest) rest.wait()  // asked for before this was here to hear it
  document.addEventListener('keydown', pressedKey)
  document.addEventListener('click', release)
  window.addEventListener('popstate', back)
  window.addEventListener('tl-theme', showTheme)
  model.on('remove', () => {
    rest.end()
    document.removeEventListener('keydown', pressedKey)
    document.removeEventListener('click', release)
    window.removeEventListener('popstate', back)
    window.removeEventListener('tl-theme', showTheme)
  })
  showTheme()
  showQuery()
  showTitle()
  requestAnimationFrame(showTheme)  // by then it hangs in the page, and the outermost element is known
  const root = document.createElement('div')
  root.append(bar, sheet, lost, working(held))
  return root
}
