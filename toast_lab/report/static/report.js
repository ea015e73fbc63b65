// Draws the pictures, and shows what is selected in one part of the report in all of them.
// Every text that comes from the user's code is set as text, never as HTML.
(() => {
  'use strict'
  const read = (id) => JSON.parse(document.getElementById(id).textContent)
  const links = read('links')
  const overlays = read('overlays')
  const figures = read('figures')
  const all = (selector) => [...document.querySelectorAll(selector)]
  const plots = {} // by figure: the document that Bokeh made of it
  let selection = null

  // -- what belongs together ----------------------------------------------------------------------
  const union = (lists) => [...new Set(lists.flat())]
  const conflictsOf = (numbers) => {
    const members = numbers.map((number) => links.conflicts[number])
    return {
      conflicts: numbers,
      nodes: union(members.map((conflict) => conflict.nodes)),
      edges: union(members.map((conflict) => conflict.edges)),
      lines: union(members.map((conflict) => conflict.lines)),
    }
  }
  // An op has one line for itself and one for each of its collectives; links use the first
  const ownLine = (line) => links.lineOfOp[links.lines[line].op]
  const withCollectives = (line) =>
    links.lines.flatMap((_, other) => (ownLine(other) === ownLine(line) ? [other] : []))
  const nodesOfLine = (line) =>
    links.nodes.flatMap((node, number) => (node.lines.includes(ownLine(line)) ? [number] : []))
  const around = {
    conflict: (number) => ({ ...conflictsOf([number]), chain: links.conflicts[number].chain }),
    board: (number) => conflictsOf(links.board[number]),
    outline: (number) => conflictsOf(links.outlines[number]),
    edge: (number) => ({ ...conflictsOf(links.edges[number]), edges: [number] }),
    node: (number) => ({
      nodes: [number],
      lines: links.nodes[number].lines,
      conflicts: links.conflicts.flatMap((conflict, index) =>
        conflict.nodes.includes(number) ? [index] : []),
    }),
    line: (number) => ({ lines: withCollectives(number), nodes: nodesOfLine(number) }),
  }
  const subjectOf = (kind, number) => {
    if (kind === 'node') return links.nodes[number]
    if (kind === 'line') return links.lines[number]
    if (kind === 'conflict') return links.conflicts[number]
    const groups = { edge: links.edges, board: links.board, outline: links.outlines }[kind]
    return links.conflicts[groups[number][0]]
  }

  function pick(kind, number) {
    const subject = subjectOf(kind, number)
    if (!subject) return
    const empty = { nodes: [], edges: [], lines: [], conflicts: [], chain: [] }
    selection = { kind, number, subject, ...empty, ...around[kind](number) }
    show()
  }

  function clear() {
    selection = null
    show()
  }

  // -- showing ------------------------------------------------------------------------------------
  function show() {
    const chosen = new Set()
    if (selection) {
      const { kind, number, conflicts, lines, nodes } = selection
      chosen.add(`${kind} ${number}`)
      lines.forEach((line) => chosen.add(`line ${line}`))
      if (kind !== 'node') conflicts.forEach((conflict) => chosen.add(`conflict ${conflict}`))
      if (kind === 'node' && conflicts.length < 8) {
        conflicts.forEach((conflict) => chosen.add(`conflict ${conflict}`))
      }
      nodes.forEach((node) => chosen.add(`node ${node}`))
    }
    for (const row of all('[data-pick]')) {
      const on = chosen.has(row.dataset.pick)
      row.classList.toggle('on', on)
      if (row.role === 'option') row.setAttribute('aria-selected', String(on))
      else if (on) row.setAttribute('aria-current', 'true')
      else row.removeAttribute('aria-current')
    }
    showInGraph()
    showInTimeline()
    inspect()
    all('.box').forEach(bringIntoView)
  }

  // A box scrolls to its first marked row; the page itself stays where it is.
  function bringIntoView(box) {
    const marked = box.querySelector('[data-pick].on')
    if (!marked || box.contains(document.activeElement) && document.activeElement !== box) return
    const place = marked.getBoundingClientRect()
    const frame = box.getBoundingClientRect()
    if (place.top < frame.top + 30 || place.bottom > frame.bottom) {
      box.scrollTop += place.top - frame.top - frame.height / 3
    }
  }

  function named(figure, name) {
    return plots[figure]?.get_model_by_name(name)
  }

  function showInGraph() {
    const markers = named('graph', 'names')
    if (!markers) return
    const { nodes, edges, chain } = selection ?? { nodes: [], edges: [], chain: [] }
    const source = markers.data_source
    source.selected.indices = [...nodes]
    named('graph', 'conflicts').data_source.selected.indices = [...edges]
    const { x, y } = source.data
    const steps = chain.slice(1).map((node, place) => [chain[place], node])
    named('graph', 'chain').data_source.data = {
      xs: steps.map((step) => step.map((node) => x[node])),
      ys: steps.map((step) => step.map((node) => y[node])),
    }
    const view = named('graph', 'dimension graph').y_range
    if (nodes.length && !nodes.some((node) => view.end <= y[node] && y[node] <= view.start)) {
      const half = (view.start - view.end) / 2
      const middle = y[nodes[0]]
      view.setv({ start: middle + half, end: middle - half })
    }
  }

  function showInTimeline() {
    const marked = named('timeline', 'marked')
    if (!marked) return
    const lines = new Set((selection?.lines ?? []).map(ownLine))
    const corners = ['left', 'bottom', 'right', 'top']
    const data = { left: [], bottom: [], right: [], top: [] }
    if (lines.size && lines.size < 200) {
      for (const lane of ['compute', 'collective']) {
        const bars = named('timeline', lane)?.data_source.data
        if (!bars) continue
        for (let index = 0; index < bars.op.length; index++) {
          if (!lines.has(links.lineOfOp[bars.op[index]])) continue
          for (const corner of corners) data[corner].push(bars[corner][index])
        }
      }
    }
    marked.data_source.data = data
  }

  function element(tag, text) {
    const node = document.createElement(tag)
    if (text !== undefined) node.textContent = text
    return node
  }

  function inspect() {
    const place = document.getElementById('facts')
    place.replaceChildren()
    document.getElementById('hint').hidden = Boolean(selection)
    document.getElementById('clear').hidden = !selection
    document.getElementById('inspector').classList.toggle('empty', !selection)
    if (!selection) return
    const { subject, conflicts, lines, kind } = selection
    place.append(element('h3', subject.title))
    const facts = element('dl')
    facts.className = 'facts'
    for (const [label, text] of subject.facts) {
      const value = element('dd')
      value.append(label === 'source' ? element('pre', text) : text)
      facts.append(element('dt', label), value)
    }
    place.append(facts)
    if (kind === 'conflict' && subject.chainNames.length) {
      place.append(element('h3', 'Why both dims have one colour'))
      const chain = element('ol')
      subject.chainNames.forEach((name) => chain.append(element('li', name)))
      place.append(chain)
    }
    const jump = element('div')
    jump.className = 'jump'
    const targets = [['graph', '[data-figure=graph]']]
    if (conflicts.length) targets.push(['conflicts', `[data-pick="conflict ${conflicts[0]}"]`])
    if (lines.length) targets.push(['program', `.listing [data-pick="line ${lines[0]}"]`])
    for (const [label, selector] of targets) {
      const button = element('button', `Show in the ${label}`)
      button.type = 'button'
      button.addEventListener('click', () =>
        document.querySelector(selector)?.scrollIntoView({ block: 'center' }))
      jump.append(button)
    }
    place.append(jump)
  }

  // -- asking -------------------------------------------------------------------------------------
  const picked = (row) => {
    const [kind, number] = row.dataset.pick.split(' ')
    pick(kind, Number(number))
  }
  document.addEventListener('click', (event) => {
    const row = event.target.closest?.('[data-pick]')
    if (row && !String(getSelection())) picked(row)
  })
  // One stop of the tab key for each list; arrows go from row to row.
  for (const list of all('.pickable')) {
    const rows = () => [...list.querySelectorAll('[data-pick]')]
    const first = rows()[0]
    if (first) first.tabIndex = 0
    list.addEventListener('keydown', (event) => {
      const row = event.target.closest('[data-pick]')
      if (!row) return
      const every = rows()
      const place = every.indexOf(row)
      const next = {
        ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: every.length - 1,
        PageDown: place + 12, PageUp: place - 12,
      }[event.key]
      if (next !== undefined) {
        event.preventDefault()
        const target = every[Math.max(0, Math.min(every.length - 1, next))]
        row.tabIndex = -1
        target.tabIndex = 0
        target.focus()
      } else if (event.key === 'Enter' || event.key === ' ') {
        event.preventDefault()
        picked(row)
      }
    })
  }
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') clear()
  })
  document.getElementById('clear').addEventListener('click', clear)
  document.addEventListener('toast:graph', (event) => {
    const [nodes, edges, outlines] = event.detail
    if (nodes.length) pick('node', nodes[0])
    else if (edges.length) pick('edge', edges[0])
    else if (outlines.length) pick('outline', outlines[0])
    else clear()
  })
  document.addEventListener('toast:op', (event) => {
    const line = links.lineOfOp[event.detail]
    if (line >= 0) pick('line', line)
  })
  for (const button of all('[data-overlay]')) {
    button.addEventListener('click', () => {
      const source = named('graph', 'names')?.data_source
      if (!source) return
      source.data = { ...source.data, ...overlays[button.dataset.overlay] }
      all('[data-overlay]').forEach((other) =>
        other.setAttribute('aria-pressed', String(other === button)))
    })
  }
  for (const button of all('[data-save]')) {
    button.addEventListener('click', () => {
      const link = element('a')
      link.href = URL.createObjectURL(new Blob([read('plan-file')], { type: 'application/json' }))
      link.download = button.dataset.save
      link.click()
      setTimeout(() => URL.revokeObjectURL(link.href), 1000)
    })
  }

  // -- pictures -----------------------------------------------------------------------------------
  async function draw(name) {
    if (!figures[name]) return
    const item = figures[name]
    delete figures[name]
    const target = document.querySelector(`[data-figure=${name}]`)
    try {
      await Bokeh.embed.embed_item(item, target)
      plots[name] = Bokeh.documents.at(-1)
      target.dataset.drawn = 'true'
    } catch (error) {
      target.textContent = 'This browser could not draw the picture; the tables have its numbers.'
      console.error(error)
    }
  }
  async function drawAll() {
    for (const name of Object.keys(figures)) {
      await draw(name)
      // Between two figures the browser answers a reader who scrolls or clicks
      await new Promise((done) => (window.requestIdleCallback ?? setTimeout)(done))
    }
    if (selection) show()
  }
  drawAll()

  const contents = new Map(all('nav a').map((link) => [link.hash.slice(1), link]))
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      contents.get(entry.target.id)?.classList.toggle('current', entry.isIntersecting)
    }
  }, { rootMargin: '-80px 0px -70% 0px' })
  all('main section').forEach((section) => watcher.observe(section))
  // Printed pages show all details, since a reader cannot unfold them
  addEventListener('beforeprint', () => all('details').forEach((part) => { part.open = true }))
  document.getElementById('inspector').classList.add('empty')
})()
