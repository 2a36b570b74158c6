// A browser starts no worker from a page that is a file, so search runs in a hidden frame there: an
// object with the part of a Worker's interface that the theme uses. On a server nothing is changed.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(script) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      // What the script in the frame sends goes to those who listen to this object.
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      // What it imports is loaded by an element, one after the other.
      inside.importScripts = async (...addresses) => {
        for (const address of addresses) await this.load(address);
      };
      this.load(script).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
    }

    load(address) {
      const { contentDocument } = this.frame;
      return new Promise((done, failed) => {
        const element = contentDocument.createElement("script");
        element.src = new URL(address, location.href);
        element.onload = done;
        element.onerror = failed;
        contentDocument.body.append(element);
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
