import { html } from "../ui.js";
export function Map() { return html`<p>…</p>`; }
