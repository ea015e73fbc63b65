// Bokeh puts a checkbox and its words side by side: a click on the words does nothing, and whoever has the page read
// aloud hears of a box without a name. Here the words are the box's label.

const LABELLED = Symbol.for('toast-lab labelled checkboxes')  // on the class of the views

function labelCheckboxes() {
  const view = globalThis.Bokeh?.Models?.Checkbox?.prototype.default_view?.prototype
  if (!view || view[LABELLED]) return  // or a Bokeh that does it in another way
  view[LABELLED] = true
  const render = view.render
  view.render = function () {
    render.call(this)
    if (!this.checkbox_el || !this.label_el) return
    const label = document.createElement('label')
    label.style.display = 'contents'
    label.append(this.checkbox_el, this.label_el)
    this.shadow_el.append(label)
  }
}

labelCheckboxes()  // before any page is rendered
