/** What every screen shows alike: waiting, failing, and a head's name. */
import { html } from "../ui.js";

export function Asked({ of, children }) {
  if (of.error) return html`<p class="failure" role="alert">${of.error.message}</p>`;
  return html`${of.slow && html`<div class="progress" role="progressbar" aria-label="on its way"><i></i></div>`}
    ${of.value ? children(of.value) : html`<p class="waiting">${of.slow ? "computing…" : ""}</p>`}`;
}

/** The first failure or the first that waits, of several. */
export const all = (...asked) => ({
  error: asked.find((one) => one.error)?.error ?? null,
  slow: asked.some((one) => one.slow),
  value: asked.every((one) => one.value) ? asked.map((one) => one.value) : null,
});

export const KINDS = {
  encoder: "Encoder self-attention",
  decoder: "Decoder self-attention",
  cross: "Encoder–decoder attention",
  self: "Self-attention",
};

/** Layer 3 of encoder.3.self: the number in its name. */
export const layerOf = (attention) => attention.name.match(/\d+/)?.[0] ?? String(attention.l);

export const headName = (attention, h) => `layer ${layerOf(attention)}, head ${h}`;

/** Colour of the page, for what is drawn and not styled. */
export const themed = (element, name) => getComputedStyle(element).getPropertyValue(`--${name}`).trim();
