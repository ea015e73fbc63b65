// Says what the page works on, once a click has waited for a moment: a server that makes a page for the first time
// cannot say so itself before the page is made. Any file comes after what the server does now, so one that comes at
// once means that nothing is waited for.

const PATIENCE_MS = 150
const GIVE_UP_MS = 20000

function working(held) {
  const box = document.createElement('div')
  box.className = 'working'
  box.hidden = true
  box.setAttribute('role', 'status')
  let newest = 0

  function hide() {
    box.hidden = true
    box.textContent = ''
  }
  async function watch(label) {
    const place = ++newest
    const began = performance.now()
    let answered = false
    const isOver = () => place !== newest || performance.now() - began > GIVE_UP_MS
    // The server may go on with other things once it has said what the click led to
    const isDone = () => (answered || held.applied > began) && held.builds === 0
    await pause(PATIENCE_MS)
    fetch(anyFile(), { method: 'HEAD', cache: 'no-store' }).catch(() => {}).then(() => { answered = true })
    await pause(PATIENCE_MS / 3)
    if (isOver() || isDone()) return
    box.textContent = `${label.replace(/^\d+\s+/, '')} …`
    box.hidden = false
    while (!isOver() && !isDone()) await pause(20)
    if (place === newest) hide()
  }
  window.addEventListener('click', (event) => {
    const pressed = event.composedPath().find((el) => el.tagName === 'BUTTON' && !el.disabled)
    const words = pressed && (pressed.getAttribute('aria-label') || pressed.textContent).trim()
    if (words && box.isConnected) watch(words)
    else newest += 1
    if (!words) hide()
  }, { capture: true, passive: true })
  return box
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
