// A table has new columns (their widths or titles), new rows, or another height.  While Tabulator
// builds its table it can take none of them, and Panel drops the rows: they are put in as soon as it
// is built.  A view that has no Tabulator yet will read them from the models.
for (const view of cb_context.index.find_all(table)) {
  const tabulator = view.tabulator
  if (tabulator == null) continue
  const isSeen = () => tabulator.element.clientHeight > 0
  const building = view._building || !tabulator.initialized
  const refit = () => {
    if (view.tabulator !== tabulator) return
    if (part === 'columns') {
      tabulator.setColumns(view.getColumns())
      view.setHidden()
    } else if (part === 'height') {
      // Tabulator keeps the height that it was built with: rows are cut, and a gap is below them
      tabulator.options.height = tabulator.element.style.height = `${table.height}px`
      if (isSeen()) tabulator.redraw(true)
    } else {
      view.setData().then(() => view.postUpdate())
    }
  }
  if (building) tabulator.on('tableBuilt', refit)
  else if (part !== 'rows') refit()
  else if (!tabulator.awaits_sight) {
    // Tabulator draws no rows while it is hidden, and would stay empty once it is seen.  It may be
    // seen by now: this runs a while after the rows came.
    const redraw = () => {
      const isEmpty = tabulator.element.querySelector('.tabulator-row') === null
      if (view.tabulator === tabulator && isEmpty) tabulator.redraw(true)
    }
    if (isSeen()) redraw()
    else {
      tabulator.awaits_sight = true
      const sight = new ResizeObserver(() => {
        if (!isSeen()) return
        sight.disconnect()
        tabulator.awaits_sight = false
        redraw()
      })
      sight.observe(tabulator.element)
    }
  }
}
