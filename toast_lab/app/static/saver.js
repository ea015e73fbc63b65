export function render({ model }) {
  model.on('msg:custom', ([name, text]) => {
    save(new Blob([text], { type: 'text/plain;charset=utf-8' }), name)
  })
  return document.createElement('span')
}
