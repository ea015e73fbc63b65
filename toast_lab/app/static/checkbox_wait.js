// A checkbox that the server ticks while its view is made, and not rendered yet, has no element to tick: Bokeh throws,
// and what else came with that message is lost. Rendering reads the model anyway, so that nothing is done before.
addEventListener('DOMContentLoaded', () => {
  const view = window.Bokeh?.Models?.get?.('Checkbox')?.prototype.default_view?.prototype
  for (const name of ['_update_active', '_update_disabled', '_update_label']) {
    const update = view?.[name]
    if (update) view[name] = function () { if (this.checkbox_el) update.call(this) }
  }
})
