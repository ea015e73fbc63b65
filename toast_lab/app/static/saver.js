export function render({ model }) {
  model.on('sent', () => {
    const [name, text] = model.sent
    save(new Blob([text], { type: 'text/plain;charset=utf-8' }), name)
    model.sent = []
  })
  return document.createElement('span')
}
