// A file from the person's disk, in pieces: the next one goes when the server has taken the last, so that neither side
// has more than one in flight and the page stays quick.
// Given: limit (bytes), piece (bytes), taken [id, bytes the server has], words.  Sends {id, name, size, at, data}.

function base64(bytes) {
  let text = ''
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode.apply(null, bytes.subarray(i, i + 0x8000))
  return btoa(text)
}

export function render({ model }) {
  const zone = document.createElement('div')
  zone.className = 'zone'
  zone.tabIndex = 0
  zone.setAttribute('role', 'button')
  zone.setAttribute('aria-label', 'drop a file here or choose one')
  const text = document.createElement('span')
  const stop = document.createElement('button')
  stop.type = 'button'
  stop.textContent = 'Cancel the upload'
  stop.hidden = true
  const chooser = document.createElement('input')
  chooser.type = 'file'
  chooser.hidden = true
  chooser.setAttribute('aria-label', 'file')
  zone.append(text, stop, chooser)
  let file = null, id = 0

  const mib = (n) => (n / 2 ** 20).toFixed(1) + ' MiB'
  const idle = () => { file = null; stop.hidden = true; zone.classList.remove('busy'); text.textContent = model.words }
  async function send(at) {
    const mine = id
    const bytes = new Uint8Array(await file.slice(at, at + model.piece).arrayBuffer())
    if (mine !== id || file === null) return
    model.send_msg({ id, name: file.name, size: file.size, at, data: base64(bytes) })
    text.textContent = `${file.name}: ${mib(at)} of ${mib(file.size)}`
  }
  function begin(found) {
    if (!found || file !== null) return
    id += 1
    if (found.size > model.limit || found.size === 0) {  // the server says why, and never gets the content
      model.send_msg({ id, name: found.name, size: found.size, at: 0, data: '' })
      return
    }
    file = found
    stop.hidden = false
    zone.classList.add('busy')
    send(0)
  }
  model.on('taken', () => {
    const [of, n] = model.taken
    if (file === null || of !== id) return
    if (n < 0 || n >= file.size) idle()
    else send(n)
  })
  model.on('words', () => { if (file === null) idle() })
  stop.addEventListener('click', (event) => {
    event.stopPropagation()
    model.send_msg({ id, name: file?.name ?? '', size: -1, at: 0, data: '' })
    id += 1
    idle()
  })
  zone.addEventListener('click', () => { if (file === null) chooser.click() })
  zone.addEventListener('keydown', (e) => { if (e.target === zone && (e.key === 'Enter' || e.key === ' ')) { e.preventDefault(); chooser.click() } })
  chooser.addEventListener('click', (event) => event.stopPropagation())
  chooser.addEventListener('change', () => { begin(chooser.files[0]); chooser.value = '' })
  zone.addEventListener('dragover', (event) => { event.preventDefault(); zone.classList.add('over') })
  zone.addEventListener('dragleave', () => zone.classList.remove('over'))
  zone.addEventListener('drop', (event) => {
    event.preventDefault()
    zone.classList.remove('over')
    begin(event.dataTransfer.files[0])
  })
  // A file dropped beside the zone would otherwise replace the page.
  const beside = (event) => { if ([...(event.dataTransfer?.types ?? [])].includes('Files')) event.preventDefault() }
  window.addEventListener('dragover', beside)
  window.addEventListener('drop', beside)
  model.on('remove', () => { window.removeEventListener('dragover', beside); window.removeEventListener('drop', beside) })
  idle()
  return zone
}
