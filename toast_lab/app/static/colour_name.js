export function render({ model }) {
  const root = document.createElement('div')
  const make = (tag, cls, text = '') => {
    const made = document.createElement(tag)
    made.className = cls
    made.textContent = text
    return made
  }
  let sent = 0
  function show() {
    const name = make('b', 'name', model.name_shown)
    const button = make('button', 'rename', 'rename')
    button.type = 'button'
    button.title = `give ${model.name_shown} another name, everywhere`
    button.addEventListener('click', edit)
    root.replaceChildren(make('span', 'quiet', 'colour '), name, button)
  }
  function edit() {
    const group = model.group
    const field = make('input', 'field')
    field.value = model.name_shown
    field.maxLength = 80
    field.setAttribute('aria-label', `new name of ${model.name_shown}`)
    const words = make('p', 'words quiet', 'Enter renames it, Esc leaves it as it is.')
    words.setAttribute('role', 'status')
    field.addEventListener('keydown', (event) => {
      event.stopPropagation() // the page has keys of its own
      if (event.key === 'Escape' || (event.key === 'Enter' && field.value.trim() === model.name_shown)) show()
      else if (event.key === 'Enter') model.send_msg([group, field.value, ++sent])
    })
    root.replaceChildren(field, words)
    field.focus()
    field.select()
  }
  function refuse() {
    const words = root.querySelector('.words')
    if (!words || !model.refused.length) return
    words.textContent = model.refused[0]
    words.className = 'words red'
    words.setAttribute('role', 'alert')
  }
  model.on('name_shown', show)
  model.on('group', show)
  model.on('refused', refuse)
  show()
  return root
}
