// The columns of a table have new widths or titles: draw its head anew as soon as it is drawn.  One
// that has no Tabulator yet reads its columns when it gets it.
for (const view of cb_context.index.find_all(cb_obj)) {
  const tabulator = view.tabulator
  const refit = () => {
    if (view.tabulator !== tabulator) return
    tabulator.setColumns(view.getColumns())
    view.setHidden()
  }
  if (tabulator?.initialized) refit()
  else tabulator?.on("tableBuilt", refit)
}
