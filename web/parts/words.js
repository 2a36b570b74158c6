/** The words of a sentence, one of which is chosen. A piece that goes on with a word stands close to it. */
import { html } from "../ui.js";
import { visible } from "./text.js";

export function Words({ tokens, chosen, choose, label, point }) {
  const key = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const next = Math.max(0, Math.min(tokens.length - 1, chosen + step));
    choose(next);
    event.currentTarget.children[next]?.focus();
  };
  return html`<div class="words" role="group" aria-label=${label} onKeyDown=${key}>
    ${tokens.map((token, i) => html`<button type="button" class=${token.startsWith("·") && token.length > 1 ? "piece" : ""} key=${i} aria-pressed=${i === chosen}
      tabindex=${i === chosen || (chosen === null && i === 0) ? 0 : -1} onClick=${() => choose(i)} onPointerEnter=${() => point?.(i)}>${visible(token)}</button>`)}
  </div>`;
}
