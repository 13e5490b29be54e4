// Browsers refuse workers in pages opened as files. There, the script of the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      const load = source =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script")
          script.src = source
          script.onload = resolve
          script.onerror = () => reject(new Error(`Cannot load ${source}`))
          inside.document.head.appendChild(script)
        })
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.inside = inside
      this.ready = load(address)
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
