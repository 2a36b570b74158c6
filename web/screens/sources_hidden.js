/** What the model writes when it cannot see a segment: before and after. */
import { useAnswer } from "../answers.js";
import { Answered } from "../parts/answered.js";
import { count, full, percent, short } from "../parts/numbers.js";
import { clipped, visible, visibleLines } from "../parts/text.js";
import { html, useEffect, useRef } from "../preact.js";

/**
 * @param {{run: Run, answers: import("../answers.js").Answers, go: Go, first: number, end: number, text: string,
 *   hidden: {start: number, stop: number}, scroll: boolean}} props  `scroll` is whether to scroll the new answer into view
 */
export function HiddenSegment({ run, answers, go, first, end, hidden, text, scroll }) {
  const found = useAnswer(answers, `runs/${run.run}/hidden`, { first, end, ...hidden });
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (scroll) element.current?.scrollIntoView({ block: "nearest" });
  }, [Boolean(found.value)]);
  return html`<section class="card hidden-one" aria-label="what the model writes without it" ref=${element}>
    <div class="row spread"><h3>Without <b class="k">${clipped(text.trim(), 40)}</b></h3>
      <button type="button" class="button small" onClick=${() => go({ hide: null }, false)}>show it again</button></div>
    <${Answered} answer=${found}>${(/** @type {HiddenAnswer} */ value) => html`<${Compared} found=${value} gpt=${run.output?.kind === "gpt"} last=${end > (run.output?.n ?? 0)} />`}<//>
  </section>`;
}

/** @param {{found: HiddenAnswer, gpt: boolean, last: boolean}} props */
function Compared({ found, gpt, last }) {
  const fall = found.before - found.after;
  const { before, after } = found.wrote;
  const times = Math.exp(Math.abs(fall));
  const often = times < 100 ? short(times, 3) : times < 1e9 ? count(Number(times.toPrecision(2))) : "over a billion";
  const likely = times < 1.005 ? "as likely as before" : `${often} times ${fall > 0 ? "less" : "more"} likely`;
  return html`<div role="status">
    <dl class="wrote-now">
      <dt>${gpt ? "it went on" : "it wrote"}</dt><dd>${visibleLines((before ?? "…").trim())}</dd>
      <dt>${gpt ? "it goes on" : "it writes now"}</dt><dd><${Changed} before=${(before ?? "").trim()} after=${after === null ? null : after.trim()} /></dd>
    </dl>
    <p>The chosen words are <b>${likely}</b>: their log-probability goes from <span class="figures" title=${full(found.before)}>${short(found.before)}</span> to <span class="figures" title=${full(found.after)}>${short(found.after)}</span>${" "}
      nats, ${fall >= 0 ? "a fall" : "a rise"} of <b class="figures" data-fall title=${full(fall)}>${short(Math.abs(fall))}</b>.</p>
    <div class="two-tables">
    <table class="pairs"><caption class="hidden">the chosen tokens and their probabilities</caption><thead><tr><th scope="col">chosen</th><th scope="col">before</th><th scope="col">after</th><th scope="col">likeliest now</th></tr></thead>
      <tbody>${found.tokens.map((token) => html`<tr><td>${visible(token.text.trim())}</td><td title=${full(Math.exp(token.before))}>${percent(Math.exp(token.before))}</td><td title=${full(Math.exp(token.after))} class=${token.after < token.before - Math.LN2 ? "now" : ""}>${percent(Math.exp(token.after))}</td><td class="token">${token.instead === null ? "the same" : visible(token.instead)}</td></tr>`)}</tbody></table>
    ${
      gpt &&
      last &&
      html`<table class="pairs"><caption class="hidden">the likeliest next tokens</caption><thead><tr><th scope="col">next, before</th><th scope="col"></th><th scope="col">after</th><th scope="col"></th></tr></thead>
      <tbody>${found.likeliest.at(-1)?.before.map((one, at) => {
        const now = /** @type {{text: string, p: number}} */ (found.likeliest.at(-1)?.after[at]);
        return html`<tr><td>${visible(one.text)}</td><td title=${full(one.p)}>${percent(one.p)}</td><td class="token">${visible(now.text)}</td><td title=${full(now.p)}>${percent(now.p)}</td></tr>`;
      })}</tbody></table>`
    }</div>
  </div>`;
}

/**
 * A text, with the words marked that another one does not have in the same order.
 * @param {{before: string, after: string | null}} props
 */
function Changed({ before, after }) {
  if (after === null) return html`<span class="soft">it cannot write with this part hidden</span>`;
  const [old, words] = [before.split(/(?<=\s)/), after.split(/(?<=\s)/)];
  const kept = commonWords(
    old.map((word) => word.trim()),
    words.map((word) => word.trim()),
  );
  if (words.length === 1 && words[0] === "") return html`<span class="soft">nothing</span>`;
  return html`${words.map((word, at) => (kept.has(at) ? visibleLines(word) : html`<mark>${visible(word.trimEnd())}</mark>${word.slice(word.trimEnd().length)}`))}`;
}

/**
 * Return the places in `b` of the longest sequence of words that both have in the same order.
 * @param {string[]} a
 * @param {string[]} b
 */
export function commonWords(a, b) {
  const table = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0));
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const found = new Set();
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) {
      found.add(j);
      i += 1;
      j += 1;
    } else if (table[i + 1][j] >= table[i][j + 1]) i += 1;
    else j += 1;
  }
  return found;
}
