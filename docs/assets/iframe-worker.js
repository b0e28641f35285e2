/* A page that is opened as a file may not start a Worker, which the search needs: here an invisible frame stands for it. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inner = frame.contentWindow;
      const answer = (type, init) => this.dispatchEvent(new MessageEvent(type, init));
      const load = (address) =>
        new Promise((done, failed) => {
          const script = inner.document.createElement("script");
          script.src = address;
          script.onload = done;
          script.onerror = failed;
          inner.document.head.append(script);
        });
      inner.postMessage = (data) => answer("message", { data });
      inner.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(new URL(address, url).href)), Promise.resolve());
      this.inner = inner;
      this.ready = load(url);
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
