// Less of what Bokeh does to lay out a page: for each property that changes and each element that has got another size
// it goes over all parts of the page, hidden ones too, which takes it a tenth of a second.

const STACK = 'page stack'  // tag of what holds the pages, of which one is shown

// What comes in one turn of the browser shares one layout, which passes over pages that are not shown.
function layoutOnce(view) {
  let root = view
  while (root.parent?.invalidate_layout) root = root.parent
  for (const name of ['invalidate_layout', 'compute_layout']) {
    const layOut = root[name].bind(root)
    let asked = false
    root[name] = () => {
      if (asked) return
      asked = true
      queueMicrotask(() => {
        asked = false
        root.child_views.filter((child) => child.model.tags.includes(STACK)).forEach(passOverHidden)
        if (name === 'compute_layout' && hasNewFigure(root)) root.update_layout()
        layOut()
      })
    }
  }
}

// A figure that came a moment ago has nothing yet that could be measured: Bokeh would stumble over it.
function hasNewFigure(view) {
  const isFigure = 'frame_width' in view.model
  return isFigure ? view.layout == null : (view.layoutable_views ?? []).some(hasNewFigure)
}

// A page that comes to the front is laid out then, since its visibility changes.
function passOverHidden(stack) {
  Object.defineProperty(stack, 'layoutable_views', {
    configurable: true,
    get() { return this.child_views.filter((page) => page.model.visible) },
  })
}
