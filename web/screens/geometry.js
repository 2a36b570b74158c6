import { html } from "../ui.js";
export function Geometry() { return html`<p>…</p>`; }
