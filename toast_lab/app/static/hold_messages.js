// While the browser builds parts of the page, what the server says waits. Bokeh applies each message at once, also
// between the making of a part and the moment from which it listens, and what comes then is lost.

const LONGEST_MS = 10000  // a build that never ends must not make the page deaf
const HELD = Symbol.for('toast-lab held messages')  // on a document, whichever copy of this script was first

// The messages of a document: when the last one was applied, and whether parts are being built.
function heldMessages(view) {
  const page = view.model.document
  if (page[HELD]) return page[HELD]
  // a Bokeh that does it in another way
  if (!page.apply_json_patch || !view.build_child_views) return { builds: 0, applied: 0 }
  const waiting = []
  const applyNow = page.apply_json_patch.bind(page)
  const apply = (...message) => {
    held.applied = performance.now()
    return applyNow(...message)
  }
  const held = page[HELD] = {
    builds: 0,
    applied: 0,
    release() {
      while (held.builds === 0 && waiting.length > 0) {
        try { apply(...waiting.shift()) } catch (error) { console.error(error) }
      }
    },
  }
  page.apply_json_patch = (...message) => {
    if (held.builds === 0 && waiting.length === 0) return apply(...message)
    waiting.push(message)
  }
  watchBuilds(view)
  return held
}

// Count the builds of all layouts, which share one method.
function watchBuilds(view) {
  let layout = Object.getPrototypeOf(view)
  while (!Object.hasOwn(layout, 'build_child_views') || 'build_child_views' in Object.getPrototypeOf(layout)) {
    layout = Object.getPrototypeOf(layout)
  }
  if (layout[HELD]) return
  layout[HELD] = true
  const build = layout.build_child_views
  layout.build_child_views = async function () {
    const held = this.model.document?.[HELD]
    if (!held) return build.call(this)
    held.builds += 1
    let isOver = false
    const end = () => {
      if (!isOver) held.builds -= 1
      isOver = true
      held.release()
    }
    setTimeout(end, LONGEST_MS)
    try {
      return await build.call(this)
    } finally {
      setTimeout(end)  // whoever asked for the parts draws them first
    }
  }
}
