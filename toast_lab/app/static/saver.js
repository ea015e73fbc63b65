export function render({ model }) {
  model.on('sent', () => {
    const [name, text] = model.sent
    const link = document.createElement('a')
    link.href = URL.createObjectURL(new Blob([text], { type: 'text/plain;charset=utf-8' }))
    link.download = name
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 10000)
    model.sent = []
  })
  return document.createElement('span')
}
