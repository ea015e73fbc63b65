({ id, alive, src, title, height }) => {
  let tries = 0
  const begin = () => {
    const place = document.getElementById(id)
    if (!place) { if (tries++ < 50) setTimeout(begin, 100); return }
    fetch(alive).then((answer) => {
      if (!answer.ok) return
      const frame = document.createElement('iframe')
      Object.assign(frame, { src, title, width: '100%', height })
      frame.style.border = '0'
      place.replaceChildren(frame)
    }).catch(() => {})
  }
  begin()
}
