// Says when the server does not answer any more, and loads the page anew once it does: the address holds the key of the
// page's state, so that everything is there again unless the server itself has ended meanwhile. A server that stands
// still keeps the connection, so each click asks, too, whether it answers; once it does, what was clicked is done.

const ASK_MS = 1500
const SILENT_MS = 2400  // after a click
const RELOADED = 'toast-lab reloaded'  // when this page last loaded itself anew, by its tab
const TOO_SOON_MS = 10000  // a server that answers and never lets a page stay connected
const ENDED = 'The server does not answer: nothing that you click here is done. This page comes back by itself when the server does. '
const SILENT = 'The server does not answer: what you click here waits until it does. '

// Any file of the server: asking for the page itself would make a session.
function anyFile() {
  const script = [...document.scripts].find(({ src }) => src.startsWith(window.location.origin))
  return script?.src ?? window.location.href
}

function lostConnection(page) {
  const box = document.createElement('div')
  box.className = 'lost'
  box.hidden = true
  box.setAttribute('role', 'alert')
  const words = document.createElement('span')
  const again = button('load this page again', 'Load again', reload)
  box.append(words, again)
  let isLost = false
  let asking = false

  function say(text) {
    words.textContent = text
    box.hidden = false
  }
  function reload() {
    sessionStorage.setItem(RELOADED, String(Date.now()))
    window.location.reload()
  }
  async function answers(ms) {
    try {
      await fetch(anyFile(), { method: 'HEAD', cache: 'no-store', signal: AbortSignal.timeout(ms) })
      return true
    } catch {
      return false
    }
  }
  async function untilItAnswers() {
    while (!await answers(ASK_MS * 4)) await new Promise((resolve) => setTimeout(resolve, ASK_MS))
    if (!isLost) box.hidden = true
    else if (Date.now() - Number(sessionStorage.getItem(RELOADED) ?? 0) > TOO_SOON_MS) reload()
    else say('The server answers, but ended the connection of this page again. ')
  }
  async function ask(text) {
    if (asking) return
    asking = true
    const wasLost = isLost
    if (isLost || !await answers(SILENT_MS)) {
      say(isLost ? ENDED : text)
      await untilItAnswers()
    }
    asking = false
    if (isLost && !wasLost) ask(ENDED)  // lost while a click asked
  }
  page.on_event('connection_lost', () => {
    isLost = true
    say(ENDED)
    ask(ENDED)
  })
  for (const sign of ['pointerdown', 'keydown']) {
    window.addEventListener(sign, () => { if (box.isConnected && !isLost) ask(SILENT) }, { capture: true, passive: true })
  }
  return box
}
