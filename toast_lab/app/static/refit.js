// A table has new columns (their widths or titles) or new rows.  While Tabulator builds its table it
// can take neither, and Panel drops the rows: both are put in as soon as it is built.  A view that
// has no Tabulator yet will read them from the models.
for (const view of cb_context.index.find_all(table)) {
  const tabulator = view.tabulator
  if (tabulator == null) continue
  const building = view._building || !tabulator.initialized
  const refit = () => {
    if (view.tabulator !== tabulator) return
    if (part === 'columns') {
      tabulator.setColumns(view.getColumns())
      view.setHidden()
    } else {
      view.setData().then(() => view.postUpdate())
    }
  }
  if (building) tabulator.on('tableBuilt', refit)
  else if (part === 'columns') refit()
  else if (tabulator.element.clientHeight === 0 && !view.awaits_sight) {
    // Tabulator draws no rows while it is hidden, and would stay empty once it is seen
    view.awaits_sight = true
    const sight = new ResizeObserver(() => {
      if (tabulator.element.clientHeight === 0) return
      sight.disconnect()
      view.awaits_sight = false
      if (view.tabulator === tabulator) tabulator.redraw(true)
    })
    sight.observe(tabulator.element)
  }
}
