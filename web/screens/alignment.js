import { html } from "../ui.js";
export function Alignment() { return html`<p>…</p>`; }
