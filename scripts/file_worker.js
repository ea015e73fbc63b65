// The site's search runs in a worker, which browsers do not start for pages opened from the disk.
// There a hidden frame replaces it, with the same code and messages. The theme expects a class of
// this name.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.appendChild(this.frame);
    this.listener = (event) => {
      if (event.source !== this.frame.contentWindow) return;
      const copy = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(copy);
      if (this.onmessage) this.onmessage(copy);
    };
    window.addEventListener("message", this.listener);
    const inside = this.frame.contentWindow.document;
    this.ready = new Promise((resolve) => {
      this.frame.addEventListener("load", resolve, { once: true });
    });
    inside.open();
    inside.write(
      "<!doctype html><script>" +
        "postMessage = (data) => parent.dispatchEvent(" +
        "new MessageEvent('message', { data, source: window }));" +
        "importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done, fail) => {" +
        "const tag = document.createElement('script'); tag.src = url; tag.onload = done;" +
        "tag.onerror = fail; document.body.appendChild(tag) })))" +
        "</" + "script><body><script src=\"" + url + "\"></" + "script></body>",
    );
    inside.close();
  }

  postMessage(data) {
    this.ready.then(() => {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    });
  }

  terminate() {
    window.removeEventListener("message", this.listener);
    this.frame.remove();
  }
}
window.IFrameWorker = IFrameWorker;
if (location.protocol === "file:") window.Worker = IFrameWorker;
