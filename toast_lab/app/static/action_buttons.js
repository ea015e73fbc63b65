export function render({ model }) {
  const root = document.createElement('div')
  let clicks = 0
  function fill() {
    const group = model.group
    root.replaceChildren(...model.rows.map(([axis, bits, label]) => {
      const button = document.createElement('button')
      button.type = 'button'
      button.textContent = label
      button.title = label
      button.addEventListener('click', () => { model.send_msg([group, axis, bits, ++clicks]) })
      return button
    }))
  }
  model.on('rows', fill)
  model.on('group', fill)
  fill()
  return root
}
