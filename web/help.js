/** The keys, in a dialog. */
import { html, useEffect, useRef } from "./ui.js";

const KEYS = [
  ["1 … 5", "the five screens"],
  ["← →", "Walk: a step back or on. Map: pan"],
  ["↑ ↓", "Walk: another query word. Map: pan"],
  ["[ ]", "the head before, the next head"],
  ["{ }", "the layer before, the next layer"],
  ["+ −", "Map: closer, farther. Home: all of it"],
  ["g", "Map: go to a query and a key"],
  ["t", "light or dark"],
  ["?", "this help"],
];

export function Help({ close }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="telescope-help">
    <h2 id="telescope-help">Keys</h2>
    <dl class="keys">${KEYS.map(([key, does]) => html`<dt><kbd>${key}</kbd></dt><dd>${does}</dd>`)}</dl>
    <p class="soft">Every strip, matrix and map takes the focus: arrow keys then go from number to number, and what you point at is written out in full.</p>
    <p style=${{ marginTop: "18px" }}><button class="button strong" onClick=${() => dialog.current.close()}>Close</button></p>
  </dialog>`;
}
