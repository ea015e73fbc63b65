"""Delays the imports of a page, as a loaded machine would."""

from __future__ import annotations

from playwright.sync_api import Page

_HOLD = """
const blobs = new Map()
const name = URL.createObjectURL
URL.createObjectURL = (blob) => {
  const url = name.call(URL, blob)
  blobs.set(url, blob)
  return url
}
let release, shim
const released = new Promise((resolve) => { release = resolve })
window.releaseImports = release
const imported = async (url, ...words) => {
  const text = await blobs.get(url)?.text() ?? ''
  if (text.includes(PART)) await released
  return shim(url, ...words)
}
Object.defineProperty(window, 'importShim', {
  configurable: true,
  get: () => shim && Object.assign(imported, shim),
  set: (given) => { shim = given },
})
"""


def hold_imports(page: Page, part: str = "") -> None:
    """Hold back the import of modules whose source contains ``part`` until they are released.

    Call it before the page is opened.
    """
    page.add_init_script(_HOLD.replace("PART", repr(part)))


def release_imports(page: Page) -> None:
    """Let the held imports proceed."""
    page.evaluate("window.releaseImports()")
