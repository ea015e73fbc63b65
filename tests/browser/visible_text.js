// What a person reads on a page, in the order of the document: texts, values of fields, what is pressed or chosen, and
// that a figure is drawn.
() => {
  const lines = []
  const EVERYTHING = { top: -Infinity, bottom: Infinity, left: -Infinity, right: Infinity }
  const visible = (element) => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length > 0
  const field = (element) => {
    if (element.tagName === 'SELECT') return [...element.selectedOptions].map((option) => option.text).join()
    return ['checkbox', 'radio'].includes(element.type) ? element.checked : element.value
  }
  // What overflows a box that hides it is not read; what can be scrolled to is
  const outside = (box, clip) => box.bottom <= clip.top || box.top >= clip.bottom || box.right <= clip.left || box.left >= clip.right
  const within = (box, clip) => ({
    top: Math.max(box.top, clip.top),
    bottom: Math.min(box.bottom, clip.bottom),
    left: Math.max(box.left, clip.left),
    right: Math.min(box.right, clip.right),
  })
  const walk = (node, clip) => {
    if (node.nodeType === Node.TEXT_NODE) {
      const text = node.textContent.trim().replace(/\s+/g, ' ')
      if (text) lines.push(text)
      return
    }
    if (node.nodeType === Node.ELEMENT_NODE) {
      if (['STYLE', 'SCRIPT', 'TEMPLATE'].includes(node.tagName)) return
      const style = getComputedStyle(node)
      const box = node.getBoundingClientRect()
      if (style.display !== 'contents') {
        if (!visible(node) || (box.width && box.height && outside(box, clip))) return
        if (style.overflowY === 'auto' && box.height) clip = EVERYTHING
        else if (style.overflowY !== 'visible') clip = within(box, clip)
      }
      if (node.tagName === 'CANVAS') lines.push('a figure')
      if (['INPUT', 'TEXTAREA', 'SELECT'].includes(node.tagName)) lines.push(`field: ${field(node)}`)
      if (node.tagName === 'SELECT') return
      if (node.matches('.bk-active, .tabulator-selected, .on')) lines.push('chosen:')
    }
    for (const child of [...(node.shadowRoot?.childNodes ?? []), ...node.childNodes]) walk(child, clip)
  }
  walk(document.body, EVERYTHING)
  return lines
}
