// One layout where Bokeh would make several.  It lays out the whole page, which takes a tenth of a second, for each
// property that changes and for each element that has got another size; what comes in one turn of the browser shares one.
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
        layOut()
      })
    }
  }
}
