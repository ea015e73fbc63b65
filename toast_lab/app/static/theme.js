(() => {
  const stored = () => { try { return localStorage.getItem('tl-theme') } catch { return null } }
  const system = matchMedia('(prefers-color-scheme: dark)')
  const lab = () => document.body?.dataset.jpThemeLight === 'false'
  window.tlTheme = {
    chosen: () => ['light', 'dark'].includes(stored()) ? stored() : 'auto',
    now() { return this.chosen() === 'auto'
      ? (system.matches || lab() ? 'dark' : 'light') : this.chosen() },
    choose(word) {
      try { word === 'auto'
        ? localStorage.removeItem('tl-theme') : localStorage.setItem('tl-theme', word) } catch {}
      this.show()
    },
    show() {
      document.documentElement.dataset.tlTheme = this.now()
      window.dispatchEvent(new Event('tl-theme'))
    },
  }
  system.addEventListener('change', () => window.tlTheme.show())
  window.addEventListener('storage', (e) => { if (e.key === 'tl-theme') window.tlTheme.show() })
  window.tlTheme.show()
})()
