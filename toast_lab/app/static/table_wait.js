// Panel's table lays itself out again once it stands still, and until then looks once a message whether it does. That
// keeps a core busy: for seconds after a table was made, since the timer that ends a scroll hardly gets a turn, and for
// ever after one was taken away. Here it looks once in a while, and no longer when it has left the page. A Panel whose
// table waits in another way is left alone.
addEventListener('DOMContentLoaded', () => {
  const view = window.Bokeh?.Models?.get?.('panel.models.tabulator.DataTabulator')?.prototype.default_view?.prototype
  const flush = view?._flush_resize_when_root_ready
  if (!flush) return
  view._flush_resize_when_root_ready = async function () {
    const moves = () => this._is_scrolling || this._initializing || this.is_drawing || this._has_active_editor()
      || [...this._initialized_stylesheets.values()].includes(false)
    for (await this.root.ready; this._resize_pending; await this.root.ready) {
      if (this.container === null || !this.el.isConnected) this._resize_pending = false  // one that is made asks anew
      else if (!moves()) return flush.call(this)
      else await new Promise((resolve) => setTimeout(resolve, 30))
    }
  }
})
