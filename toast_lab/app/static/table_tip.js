(event, part) => {
  const text = String((part.getValue ? part.getValue() : part.getDefinition().title) ?? '')
  if (!text) return ''
  const tip = document.createElement('div')
  tip.textContent = text
  return tip
}
