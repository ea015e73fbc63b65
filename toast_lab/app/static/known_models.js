// What a message of the server brings, the server knows. Bokeh takes it for new all the same, and sends it back, whole,
// with the page's next event: the first click on a table took the table with it, and the server wrote a warning of a
// reference that is already known.

const KNOWS = Symbol.for('toast-lab known models')  // on a document, whichever copy of this script was first

function keepKnown(page) {
  if (page[KNOWS] || !page.apply_json_patch || !page._new_models) return  // or a Bokeh that does it in another way
  page[KNOWS] = true
  const apply = page.apply_json_patch.bind(page)
  page.apply_json_patch = (patch, ...buffers) => {
    try {
      return apply(patch, ...buffers)
    } finally {
      const known = new Set()
      collectModels(patch, known)
      // What a view has made meanwhile is news
      for (const model of page._new_models) if (known.has(model.id)) page._new_models.delete(model)
    }
  }
}

// The ids of the models that a part of a message defines.
function collectModels(part, ids) {
  if (typeof part !== 'object' || part === null || ArrayBuffer.isView(part)) return
  if (part.type === 'object') ids.add(part.id)
  for (const inner of Array.isArray(part) ? part : Object.values(part)) collectModels(inner, ids)
}
