// Tells when whoever looks at the page has done nothing for a while, and neither server nor browser has had anything
// to do: a page that has just changed is read, and clicked next.

const REST_MS = 1000
const QUIET_MS = 500  // since the server said something
const SIGNS = ['pointermove', 'pointerdown', 'wheel', 'keydown', 'scroll', 'touchstart']

// Calls `tell` at rest, once for each `wait()`.
function atRest(held, tell) {
  let stirred = performance.now()
  let timer = null
  const stir = () => { stirred = performance.now() }
  const lookIn = (ms) => { timer ??= setTimeout(look, ms) }
  function look() {
    timer = null
    const left = Math.max(stirred + REST_MS, held.applied + QUIET_MS) - performance.now()
    if (left > 0) return lookIn(left)
    if (document.hidden || held.builds > 0) return lookIn(REST_MS / 4)
    tell()
  }
  const options = { capture: true, passive: true }
  for (const sign of SIGNS) window.addEventListener(sign, stir, options)
  return {
    wait() { lookIn(0) },
    end() {
      clearTimeout(timer)
      for (const sign of SIGNS) window.removeEventListener(sign, stir, options)
    },
  }
}
