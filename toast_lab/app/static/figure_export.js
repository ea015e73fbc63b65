function found(name, near) {
  const all = []
  const walk = (view) => {
    if (view.model?.name === name && view.export
      && view.el?.getBoundingClientRect().width > 0) all.push(view)
    for (const child of view.child_views ?? []) walk(child)
  }
  for (const root of Object.values(window.Bokeh?.index ?? {})) walk(root)
  const middle = (el) => { const b = el.getBoundingClientRect();
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
  return new Promise((done, failed) => sheet.toBlob((blob) =>
    blob ? done(blob) : failed(), 'image/png'))
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
      save(await (type === 'png' ? png(view) : view.export('svg', false).to_blob()),
        `${model.file}.${type}`)
    })
    root.append(button)
  }
  return root
}
