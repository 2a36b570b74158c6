/** The words of a sentence, one of which is chosen. A piece that goes on with a word stands close to it. */
import { html, useEffect, useRef } from "../ui.js";
import { count } from "./numbers.js";
import { visible } from "./text.js";

/** Of a long text these are some, from `start` on; the rest is behind their first and their last. */
export function Words({ words: { tokens, start, n }, at, choose, label }) {
  const list = useRef(null);
  const chosen = at - start;
  useEffect(() => {
    const [all, one] = [list.current, list.current.querySelector("[aria-pressed=true]")].map((it) => it?.getBoundingClientRect());
    if (one && (one.top < all.top || one.bottom > all.bottom)) list.current.scrollTop += one.top - all.top - (all.height - one.height) / 2;
  }, [at, tokens]);
  const key = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const next = Math.max(0, Math.min(n - 1, at + step));
    choose(next);
    event.currentTarget.querySelectorAll("[aria-pressed]")[next - start]?.focus();
  };
  const more = (to, name) => html`<button type="button" class="soft" key=${name} aria-label=${name} title=${name} onClick=${() => choose(to)}>…</button>`;
  return html`<div class="words" role="group" aria-label=${label} onKeyDown=${key} ref=${list}>
    ${start > 0 && more(start - 1, `the ${count(start)} before`)}
    ${tokens.map((token, i) => html`<button type="button" class=${token.startsWith("·") && token.length > 1 ? "piece" : ""} key=${i} aria-pressed=${i === chosen}
      tabindex=${i === chosen ? 0 : -1} onClick=${() => choose(start + i)}>${visible(token)}</button>`)}
    ${start + tokens.length < n && more(start + tokens.length, `the ${count(n - start - tokens.length)} behind`)}
  </div>`;
}
