// Says when the server does not answer any more, and loads the page anew once it does: the address holds the key of the
// page's state, so that everything is there again unless the server itself has ended meanwhile.

const ASK_MS = 1500
const RELOADED = 'toast-lab reloaded'  // when this page last loaded itself anew, by its tab
const TOO_SOON_MS = 10000  // a server that answers and never lets a page stay connected

function lostConnection(page) {
  const box = document.createElement('div')
  box.className = 'lost'
  box.hidden = true
  box.setAttribute('role', 'alert')
  const words = document.createElement('span')
  const again = button('load this page again', 'Load again', reload)
  box.append(words, again)
  let asking = null

  function reload() {
    sessionStorage.setItem(RELOADED, String(Date.now()))
    window.location.reload()
  }
  // Any file of the server: asking for the page itself would make a session.
  function anyFile() {
    const script = [...document.scripts].find(({ src }) => src.startsWith(window.location.origin))
    return script?.src ?? window.location.href
  }
  async function ask() {
    try {
      await fetch(anyFile(), { method: 'HEAD', cache: 'no-store', signal: AbortSignal.timeout(ASK_MS * 4) })
    } catch {
      asking = setTimeout(ask, ASK_MS)
      return
    }
    asking = null
    if (Date.now() - Number(sessionStorage.getItem(RELOADED) ?? 0) > TOO_SOON_MS) reload()
    else words.textContent = 'The server answers, but ended the connection of this page again. '
  }
  page.on_event('connection_lost', () => {
    if (!box.hidden) return
    box.hidden = false
    words.textContent = 'The server does not answer: nothing that you click here is done. This page comes back by itself when the server does. '
    asking ??= setTimeout(ask, 0)
  })
  return box
}
