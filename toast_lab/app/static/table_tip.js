(event, part) => {
  const text = String((part.getValue ? part.getValue() : part.getDefinition().title) ?? '')
  const cell = part.getElement()
  // Since it was decided to show a tip, the pointer may have left, or the cell may be gone.
  if (!text || !cell || !cell.matches(':hover')) return ''
  const tip = document.createElement('div')
  tip.textContent = text
  // Tabulator takes a tip away when the pointer leaves the cell, which a cell that was drawn anew
  // under the pointer, by a click for instance, never sees.
  const leave = (move) => {
    if (cell.isConnected && move.composedPath().includes(cell)) return
    document.removeEventListener('pointermove', leave, true)
    ;(tip.closest('.tabulator-tooltip') ?? tip).remove()
  }
  document.addEventListener('pointermove', leave, true)
  return tip
}
