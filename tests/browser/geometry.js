/* Everything on a page that cannot be read or used for where it stands, as a list of sentences.
   The tree is the composed one: slots, and the inside of every shadow root. */
(settings) => {
  const { longText, minContrast } = settings
  const width = window.innerWidth
  const height = window.innerHeight
  const offences = new Map()
  const tell = (kind, where) => {
    const sentence = `${kind}: ${where}`
    offences.set(sentence, kind)
  }
  const up = (el) => el.assignedSlot || el.parentElement || el.getRootNode().host || null
  const chain = (el) => {
    const all = []
    for (let at = el; at; at = up(at)) all.push(at)
    return all
  }
  const styles = new Map()
  const style = (el) => {
    if (!styles.has(el)) styles.set(el, getComputedStyle(el))
    return styles.get(el)
  }
  // Panes of tabs that are not open are hidden, whatever is said of what is in them
  const sights = new Map()
  const seen = (el) => {
    if (!sights.has(el))
      sights.set(el, el.checkVisibility({ opacityProperty: true, visibilityProperty: true }) &&
        chain(el).every((at) => style(at).visibility !== 'hidden'))
    return sights.get(el)
  }
  const name = (el) => {
    const at = el.nodeType === 3 ? el.parentElement : el
    const own = (at.getAttribute?.('title') || at.getAttribute?.('aria-label') || '').slice(0, 30)
    const classes = [...(at.classList || [])].slice(0, 3).join('.')
    return `<${at.localName}${classes ? `.${classes}` : ''}${own ? ` "${own}"` : ''}>`
  }
  const short = (text) => JSON.stringify(text.trim().replace(/\s+/g, ' ').slice(0, 60))
  const area = (r) => Math.max(0, r.right - r.left) * Math.max(0, r.bottom - r.top)
  const meet = (a, b) => ({
    left: Math.max(a.left, b.left),
    top: Math.max(a.top, b.top),
    right: Math.min(a.right, b.right),
    bottom: Math.min(a.bottom, b.bottom),
  })
  const HIDES = new Set(['hidden', 'clip'])
  const SCROLLS = new Set(['auto', 'scroll'])

  /* What is left of a box inside its ancestors, and which of them cut it without a way to scroll */
  const clips = new Map()
  const clip = (el) => {
    if (clips.has(el)) return clips.get(el)
    const parent = up(el)
    const outer = parent
      ? clip(parent)
      : {
          box: { left: -1e9, top: -1e9, right: 1e9, bottom: 1e9 },
          hard: { left: -1e9, top: -1e9, right: 1e9, bottom: 1e9 },
          scrollsX: false,
          scrollsY: false,
        }
    let own = outer
    const s = style(el)
    const isRoot = el === document.documentElement || el === document.body
    if (!isRoot && s.display !== 'contents' && s.display !== 'inline') {
      // Headings of a table go sideways with its rows
      const follows = el.matches('.tabulator-header, .tabulator-header-contents')
      const isHidden = [HIDES.has(s.overflowX) && !follows, HIDES.has(s.overflowY)]
      const isScrolled = [SCROLLS.has(s.overflowX) || follows, SCROLLS.has(s.overflowY)]
      if (isHidden.some(Boolean) || isScrolled.some(Boolean)) {
        const r = el.getBoundingClientRect()
        const wide = { left: -1e9, top: -1e9, right: 1e9, bottom: 1e9 }
        const limit = { ...wide }
        const hard = { ...wide }
        if (isHidden[0] || isScrolled[0]) [limit.left, limit.right] = [r.left, r.right]
        if (isHidden[1] || isScrolled[1]) [limit.top, limit.bottom] = [r.top, r.bottom]
        if (isHidden[0]) [hard.left, hard.right] = [r.left, r.right]
        if (isHidden[1]) [hard.top, hard.bottom] = [r.top, r.bottom]
        own = {
          box: meet(outer.box, limit),
          // Below something that scrolls it may be brought into view
          hard: meet(
            {
              left: isScrolled[0] ? -1e9 : outer.hard.left,
              right: isScrolled[0] ? 1e9 : outer.hard.right,
              top: isScrolled[1] ? -1e9 : outer.hard.top,
              bottom: isScrolled[1] ? 1e9 : outer.hard.bottom,
            },
            hard,
          ),
          scrollsX: outer.scrollsX || isScrolled[0],
          scrollsY: outer.scrollsY || isScrolled[1],
        }
      }
    }
    clips.set(el, own)
    return own
  }
  const deepAt = (x, y, root = document) => {
    for (const el of root.elementsFromPoint(x, y)) {
      if (el.getRootNode() !== root || !seen(el)) continue
      return (el.shadowRoot && deepAt(x, y, el.shadowRoot)) || el
    }
    return null
  }
  const holds = (outer, inner) => {
    for (let at = inner; at; at = up(at)) if (at === outer) return true
    return false
  }
  const related = (a, b) => holds(a, b) || holds(b, a)

  // -- collect ------------------------------------------------------------------------------------
  const CONTROL = [
    'button', 'input:not([type=hidden])', 'select', 'textarea', 'a[href]', 'summary', '.bk-tab',
    '[role=button]', '[role=tab]',
  ].join(',')
  const texts = []
  const controls = []
  const scrollers = []
  const drawn = []
  const walk = (root) => {
    for (const child of root.childNodes) {
      if (child.nodeType === 3) {
        if (!child.data.trim() || root.nodeType === 11) continue
        const parent = child.parentElement
        if (parent && !parent.matches('style,script,option,title,noscript')) texts.push(child)
        continue
      }
      if (child.nodeType !== 1 || child.matches('style,script,template,noscript')) continue
      if (child.matches(CONTROL)) controls.push(child)
      if (child.matches('canvas,svg,img,iframe')) drawn.push(child)
      const s = style(child)
      if (s.display !== 'none' && SCROLLS.has(s.overflowY) | SCROLLS.has(s.overflowX))
        scrollers.push(child)
      if (child.shadowRoot) walk(child.shadowRoot)
      walk(child)
    }
  }
  walk(document.body)

  // -- the page -----------------------------------------------------------------------------------
  const overhang = document.documentElement.scrollWidth - width
  if (overhang > 0) tell('page scrolls sideways', `by ${overhang} px`)

  // -- texts --------------------------------------------------------------------------------------
  const hasTip = (el) =>
    chain(el).slice(0, 5).some((at) => at.title || at.matches?.('.tabulator-cell, .tabulator-col'))
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => {
      const part = v / 255
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
    })
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const channels = (css) => {
    const found = css.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/)
    if (found) return found.slice(1).map((v) => (v === undefined ? 1 : Number(v)))
    // What is mixed of colours has parts of one
    const mixed = css.match(/^color\(srgb ([\d.]+) ([\d.]+) ([\d.]+)(?: \/ ([\d.]+))?\)$/)
    return mixed ? [...mixed.slice(1, 4).map((v) => 255 * v), Number(mixed[4] ?? 1)] : null
  }
  const ground = (el) => {
    const layers = []
    for (const at of chain(el)) {
      const rgba = channels(style(at).backgroundColor)
      if (rgba === null || style(at).backgroundImage !== 'none') return null
      layers.push(rgba)
      if (rgba[3] === 1) break
    }
    let colour = [255, 255, 255]
    for (const [r, g, b, a] of layers.reverse())
      colour = [r, g, b].map((v, i) => v * a + colour[i] * (1 - a))
    return colour
  }
  const fading = (el) => chain(el).reduce((part, at) => part * Number(style(at).opacity), 1)

  const painted = []
  for (const node of texts) {
    const el = node.parentElement
    if (!seen(el)) continue
    const range = document.createRange()
    range.selectNodeContents(node)
    const whole = range.getBoundingClientRect()
    if (area(whole) < 4) continue
    const { box, hard } = clip(el)
    // An ellipsis is put where a text leaves its box, so that its own box tells nothing
    const lines = [...range.getClientRects()].filter((r) => area(r) >= 4)
    const text = node.data.trim()
    let isCut = false
    for (const line of lines) {
      const [left, right] = [Math.max(hard.left, -1e9), hard.right]
      const across = Math.max(left - line.left, line.right - right)
      const inReach = line.bottom > hard.top + 1 && line.top < hard.bottom - 1
      if (across > 1.5 && inReach && line.right > left && line.left < right) isCut = true
      const isPartly =
        line.bottom > hard.top + 0.2 * (line.bottom - line.top) &&
        line.top < hard.bottom - 0.2 * (line.bottom - line.top) &&
        (line.top < hard.top - 0.3 * (line.bottom - line.top) ||
          line.bottom > hard.bottom + 0.3 * (line.bottom - line.top))
      if (isPartly && area(meet(line, box)) > 0)
        tell('text cut at its top or foot', `${short(text)} in ${name(el)}`)
    }
    const cell = chain(el).find((at) => at.matches?.('.tabulator-cell'))
    const inner = cell ? cell.textContent.trim() : text
    if (isCut && area(meet(whole, box)) > 0) {
      if (inner.length < longText || !hasTip(el))
        tell('text cut', `${short(inner)} in ${name(el)}`)
    }
    for (const line of lines) {
      const left = meet(line, meet(box, { left: 0, top: 0, right: width, bottom: height }))
      if (left.right - left.left < 3 || left.bottom - left.top < 5) continue
      painted.push({ el, text, left })
    }
  }
  for (const { el, text, left } of painted) {
    if (style(el).pointerEvents === 'none') continue
    const [x, y] = [(left.left + left.right) / 2, (left.top + left.bottom) / 2]
    const hit = deepAt(x, y)
    if (hit && !related(hit, el))
      tell('text covered', `${short(text)} in ${name(el)} by ${name(hit)}`)
    const ink = channels(style(el).color)
    const below = ground(el)
    if (ink && below && !chain(el).some((at) => at.matches?.(':disabled, [aria-disabled=true]'))) {
      const share = ink[3] * fading(el)
      const shown = ink.slice(0, 3).map((v, i) => v * share + below[i] * (1 - share))
      const [high, low] = [luminance(shown), luminance(below)].sort((a, b) => b - a)
      const contrast = (high + 0.05) / (low + 0.05)
      if (contrast < minContrast)
        tell('text too faint', `${short(text)} in ${name(el)}, contrast ${contrast.toFixed(1)}`)
    }
  }
  const cells = new Map()
  painted.forEach((part, index) => {
    for (let y = Math.floor(part.left.top / 40); y <= part.left.bottom / 40; y++) {
      if (!cells.has(y)) cells.set(y, [])
      for (const other of cells.get(y)) {
        const second = painted[other]
        const both = meet(part.left, second.left)
        if (both.right - both.left < 3 || both.bottom - both.top < 5) continue
        if (part.el === second.el || !area(both)) continue
        const [x, at] = [(both.left + both.right) / 2, (both.top + both.bottom) / 2]
        // Where something opaque is over both nothing can be read through it
        const hit = deepAt(x, at)
        const upper = hit && (holds(part.el, hit) ? part.el : holds(second.el, hit) ? second.el : null)
        const lower = upper === part.el ? second.el : part.el
        const isOver = (el) => !holds(el, lower) && (channels(style(el).backgroundColor) || [])[3] === 1
        if (upper && !chain(upper).some(isOver))
          tell('texts overlap', `${short(second.text)} and ${short(part.text)}`)
      }
      cells.get(y).push(index)
    }
  })

  // -- controls -----------------------------------------------------------------------------------
  for (const el of controls) {
    if (!seen(el)) continue
    const r = el.getBoundingClientRect()
    if (r.width < 3 || r.height < 3) continue
    const { box, hard } = clip(el)
    const what = `${short(el.innerText || el.value || el.title || el.placeholder || '')} ${name(el)}`
    if (r.right > width + 1 || r.left < -1) {
      if (!clip(el).scrollsX) tell('control outside the window', what)
    }
    if (r.left < hard.left - 2 || r.right > hard.right + 2) tell('control cut across', what)
    const inTable = chain(el).some((at) => at.matches?.('.tabulator'))
    if (!inTable && (r.left < box.left - 2 || r.right > box.right + 2))
      tell('control reached only by scrolling sideways', what)
    if (r.top < hard.top - 3 || r.bottom > hard.bottom + 3) tell('control cut in height', what)
    if (el.matches('button,.bk-tab') && el.scrollWidth > el.clientWidth + 2 && el.innerText?.trim())
      tell('text leaves its button', what)
    const left = meet(r, meet(box, { left: 0, top: 0, right: width, bottom: height }))
    if (left.right - left.left < 6 || left.bottom - left.top < 6) continue
    const hit = deepAt((left.left + left.right) / 2, (left.top + left.bottom) / 2)
    const label = el.labels?.[0]
    if (hit && !related(hit, el) && !(label && related(hit, label)) &&
        style(el).pointerEvents !== 'none')
      tell('control covered', `${what} by ${name(hit)}`)
  }

  // Words inside of fields are no nodes of the tree
  const ruler = document.createElement('canvas').getContext('2d')
  for (const el of controls) {
    if (!el.matches('select:not([multiple]),input') || !seen(el) || el.clientWidth < 4) continue
    const words = el.localName === 'select'
      ? el.selectedOptions[0]?.textContent ?? ''
      : el.value || el.placeholder || ''
    if (!words || ['checkbox', 'radio', 'file', 'range'].includes(el.type)) continue
    const s = style(el)
    ruler.font = `${s.fontSize} ${s.fontFamily}`
    const room = el.clientWidth - parseFloat(s.paddingLeft) - parseFloat(s.paddingRight)
    const needed = ruler.measureText(words.trim()).width
    if (needed > room + 1 && words.length < longText && !el.title)
      tell('words cut in a field', `${short(words)} needs ${Math.round(needed)} of ${Math.round(room)}`)
  }

  // -- panes that scroll --------------------------------------------------------------------------
  const content = [
    ...painted.map((p) => p.left),
    ...[...controls, ...drawn].filter(seen).map((el) => {
      const r = el.getBoundingClientRect()
      return meet(r, meet(clip(el).box, { left: 0, top: 0, right: width, bottom: height }))
    }).filter((r) => area(r) > 30),
  ]
  const centreIn = (r, box) => {
    const [x, y] = [(r.left + r.right) / 2, (r.top + r.bottom) / 2]
    return x > box.left && x < box.right && y > box.top && y < box.bottom
  }
  for (const el of scrollers) {
    if (!seen(el)) continue
    const r = el.getBoundingClientRect()
    if (area(meet(r, clip(el).box)) < 100) continue
    const s = style(el)
    const across = el.scrollWidth - el.clientWidth
    const free = el.matches('.tabulator-tableholder, pre, textarea, .listing, .scroll')
    if (SCROLLS.has(s.overflowX) && across > 2 && !free)
      tell('pane scrolls sideways', `${name(el)} by ${across} px`)
    const more = el.scrollHeight - el.clientHeight
    if (!SCROLLS.has(s.overflowY) || more < 8) continue
    const foot = Math.min(r.bottom, clip(el).box.bottom, height)
    const last = Math.max(r.top, ...content.filter((c) => centreIn(c, r)).map((c) => c.bottom))
    const isAtEnd = el.scrollTop + el.clientHeight > el.scrollHeight - 8
    if (!isAtEnd && r.top >= 0 && foot - last > 90 && el.matches('.listing, .source, .tabulator-tableholder'))
      tell('blank foot of rows that scroll', `${name(el)}, ${Math.round(foot - last)} px`)
    if (el.clientHeight < 44 && el.clientHeight > 0 && !el.matches('textarea'))
      tell('too low to scroll in', `${name(el)} has ${el.clientHeight} px of ${el.scrollHeight}`)
    // Is there room in the same column that nothing uses?  Narrow pages are scrolled anyway.
    if (width < 1100 && settings.isApp || el.localName === 'select') continue
    for (let branch = el, parent = up(el); parent; branch = parent, parent = up(parent)) {
      if (parent === document.body) break
      const kids = [...parent.children, ...(parent.shadowRoot?.children || [])]
      const mine = branch.getBoundingClientRect()
      for (const kid of kids) {
        if (kid === branch || kid.matches('style,link,script') || !seen(kid)) continue
        const pane = kid.getBoundingClientRect()
        if (pane.width < 80 || pane.height < 100 || holds(kid, branch)) continue
        // What is in it is known only for what is in the window
        if (pane.top < 0 || pane.bottom > height + 2) continue
        const isStacked = pane.top >= mine.bottom - 4 || pane.bottom <= mine.top + 4
        const isSame = Math.min(pane.right, mine.right) - Math.max(pane.left, mine.left) >
          0.5 * Math.min(pane.width, mine.width)
        if (!isStacked || !isSame) continue
        const inside = content.filter((c) => centreIn(c, pane))
        const foot = Math.max(pane.top, ...inside.map((c) => c.bottom))
        const empty = Math.min(pane.bottom, height) - foot
        if (empty > 110 && Math.min(empty, more) > 24)
          tell('empty room beside a scrollbar',
            `${name(el)} scrolls ${more} px while ${Math.round(empty)} px of ${name(kid)} are empty`)
      }
    }
  }

  // -- figures, whose letters are pixels ----------------------------------------------------------
  const pen = document.createElement('canvas').getContext('2d')
  const views = []
  const gather = (view) => {
    views.push(view)
    for (const child of view.child_views || []) gather(child)
  }
  const index = window.Bokeh?.index ?? {}
  for (const root of Object.values(index)) gather(root)
  const plots = views.filter((view) => view.frame && view.canvas_view && seen(view.el))
  const figureName = (plot) => plot.model.name || plot.model.title?.text || 'figure'
  for (const plot of plots) {
    // One without height has no area that could be in sight
    const r = plot.el.getBoundingClientRect()
    if (r.width > 0 && r.height < 60)
      tell('figure too low', `${figureName(plot)}: ${Math.round(r.height)} px`)
  }
  const shownPlots = plots.filter(
    (view) => area(meet(view.el.getBoundingClientRect(), clip(view.el).box)) > 400,
  )
  shownPlots.forEach((plot, i) => {
    for (const other of shownPlots.slice(i + 1)) {
      const both = meet(plot.el.getBoundingClientRect(), other.el.getBoundingClientRect())
      if (both.right - both.left > 3 && both.bottom - both.top > 3)
        tell('figures overlap', `${figureName(plot)} and ${figureName(other)}, ` +
          `${Math.round(both.bottom - both.top)} px`)
    }
  })
  let figureTexts = 0
  for (const plot of shownPlots) {
    const title = figureName(plot)
    const el = plot.canvas_view.el.getBoundingClientRect()
    const boxes = []
    const frame = plot.frame.bbox
    if (frame.height < 40 || frame.width < 80)
      tell('figure too small', `${title}: ${Math.round(frame.width)} x ${Math.round(frame.height)}`)
    const words = plot.model.title?.text
    if (words && plot.model.title.visible !== false) {
      pen.font = `${plot.model.title.text_font_style} ${plot.model.title.text_font_size} sans-serif`
      const needed = pen.measureText(words).width
      const room = el.width - frame.left
      figureTexts++
      if (needed > room + 2)
        tell('figure title cut', `${short(words)} needs ${Math.round(needed)} of ${Math.round(room)}`)
    }
    for (const axis of plot.model.below.concat(plot.model.left, plot.model.above)) {
      if (!axis.axis_label || axis.visible === false) continue
      const upright = plot.model.left.includes(axis)
      pen.font = `${axis.axis_label_text_font_size} sans-serif`
      const needed = pen.measureText(String(axis.axis_label)).width
      const room = upright ? el.height : el.width
      figureTexts++
      if (needed > room + 2)
        tell('figure axis label cut',
          `${short(String(axis.axis_label))} needs ${Math.round(needed)} of ${Math.round(room)}`)
    }
    for (const view of plot.computed_renderer_views || plot.renderer_views?.values?.() || []) {
      const model = view.model
      if (model.type === 'Legend' && model.visible && model.items.length) {
        const box = view.bbox
        if (box.width > el.width + 2 || box.left < -2 || box.right > el.width + 2)
          tell('figure legend cut', `${title}: ${Math.round(box.width)} of ${Math.round(el.width)}`)
        const inFrame = meet(box, frame)
        if (area(inFrame) > 30) boxes.push(['legend', inFrame])
      }
    }
    for (const view of plot.computed_renderer_views || []) {
      if (view.model.type !== 'GlyphRenderer' || !view.model.visible) continue
      const glyph = view.glyph
      const kind = glyph?.model?.type
      const sx = glyph?.sx
      const sy = glyph?.sy
      if (!sx || !sy) continue
      if (kind === 'Scatter' || kind === 'Circle') {
        for (const [, box] of boxes) {
          let under = 0
          for (let i = 0; i < sx.length; i++)
            if (sx[i] > box.left && sx[i] < box.right && sy[i] > box.top && sy[i] < box.bottom)
              under++
          if (under) tell('figure legend on markers', `${title}: ${under} markers`)
        }
      }
      if (kind === 'Text') {
        const strings = glyph.text?.array ?? glyph.text
        const sized = glyph.text_font_size?.value ?? '11px'
        const align = glyph.text_align?.value ?? 'left'
        const offset = glyph.x_offset?.value ?? 0
        const lift = glyph.y_offset?.value ?? 0
        const shown = []
        for (let i = 0; i < sx.length; i++) {
          const text = String(strings?.[i] ?? strings?.get?.(i) ?? '')
          if (!text || !Number.isFinite(sx[i] + sy[i])) continue
          const size = glyph.text_font_size?.get?.(i) ?? sized
          pen.font = `${size} sans-serif`
          const long = pen.measureText(text).width
          const at = glyph.text_align?.get?.(i) ?? align
          const start = sx[i] + (glyph.x_offset?.get?.(i) ?? offset) -
            (at === 'center' ? long / 2 : at === 'right' ? long : 0)
          const middle = sy[i] + (glyph.y_offset?.get?.(i) ?? lift)
          const box = { left: start, right: start + long, top: middle - 5, bottom: middle + 5 }
          if (box.right < frame.left || box.left > frame.right) continue
          if (box.bottom < frame.top || box.top > frame.bottom) continue
          shown.push([text, box])
        }
        figureTexts += shown.length
        for (let i = 0; i < shown.length; i++)
          for (let k = i + 1; k < shown.length; k++) {
            const both = meet(shown[i][1], shown[k][1])
            if (both.right - both.left > 2 && both.bottom - both.top > 3)
              tell('figure texts overlap',
                `${title}, ${view.model.name}: ${short(shown[i][0])} and ${short(shown[k][0])}`)
          }
      }
    }
  }
  // -- what is promised: it can be brought into view, and nothing is over it ------------------------
  const places = [...scrollers, document.scrollingElement].map((el) => [el, el.scrollTop, el.scrollLeft])
  const plain = (text) => (text || '').trim().replace(/\s+/g, ' ')
  const isReadable = (el, wanted) => {
    el.scrollIntoView({ block: 'center', inline: 'nearest' })
    clips.clear()
    const r = wanted.getBoundingClientRect()
    const left = meet(r, meet(clip(el).box, { left: 0, top: 0, right: width, bottom: height }))
    if (area(r) < 20 || area(left) < 0.9 * Math.min(area(r), width * height)) return false
    const hit = deepAt((left.left + left.right) / 2, (left.top + left.bottom) / 2)
    return hit !== null && related(hit, el)
  }
  const missing = []
  for (const promise of settings.shows.map(plain)) {
    const found = texts.filter((node) => {
      const text = plain(node.data)
      return text === promise || (promise.length > 5 && text.startsWith(promise))
    })
    const kept = found.some((node) => {
      if (!seen(node.parentElement)) return false
      const range = document.createRange()
      range.selectNodeContents(node)
      return isReadable(node.parentElement, range)
    })
    if (!kept) missing.push(`text ${short(promise)}`)
  }
  for (const promise of settings.fields) {
    const kept = controls.some((el) => {
      const labels = [...(el.labels || [])].map((label) => plain(label.innerText))
      const beside = plain(el.getRootNode().querySelector?.('label')?.innerText)
      return [...labels, beside, el.getAttribute('aria-label')].includes(promise) &&
        seen(el) && isReadable(el, el)
    })
    if (!kept) missing.push(`field ${short(promise)}`)
  }
  const named = new Set(views.filter((v) => v.el && v.model?.name && seen(v.el) &&
    v.el.getBoundingClientRect().height > 60).map((v) => v.model.name))
  for (const promise of settings.figures)
    if (!named.has(promise)) missing.push(`figure ${short(promise)}`)
  for (const [el, top, left] of places) {
    el.scrollTop = top
    el.scrollLeft = left
  }
  return {
    missing,
    offences: [...offences.keys()],
    texts: painted.length,
    controls: controls.filter(seen).length,
    figures: shownPlots.length,
    figureTexts,
  }
}
