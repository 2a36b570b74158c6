/** Formulas in MathML, which browsers typeset without a font or a library. */
import { html } from "../preact.js";

/** @type {(base: string, index: string, kind?: string) => any} */
const sub = (base, index, kind) => html`<msub class=${kind}><mi>${base}</mi><mi>${index}</mi></msub>`;
/** @type {(base: string, a: string, b: string, kind?: string) => any} */
const subsub = (base, a, b, kind) =>
  html`<msub class=${kind}><mi>${base}</mi><mrow><mi>${a}</mi><mi>${b}</mi></mrow></msub>`;
/** @type {(index: string) => any} */
const over = (index) => html`<munder><mo>∑</mo><mi>${index}</mi></munder>`;
/** @type {(...parts: any[]) => any} */
const math = (...parts) => html`<div class="formula">${parts.map((inside) => html`<math>${inside}</math>`)}</div>`;

/**
 * The usual formula of each step; `d` is the length of a key.
 * @type {Record<string, (d: number) => any>}
 */
export const FORMULAS = {
  tokens: () =>
    math(
      html`<mtext>text</mtext><mo>→</mo><msub><mi>t</mi><mn>1</mn></msub><mo>,</mo><mo>…</mo><mo>,</mo><msub><mi>t</mi><mi>n</mi></msub>`,
    ),
  embedding: () => math(html`${sub("x", "i", "q")}<mo>∈</mo><msup><mi>ℝ</mi><mi>d</mi></msup>`),
  qkv: () =>
    math(
      html`${sub("q", "i", "q")}<mo>=</mo>${sub("x", "i")}<msub><mi>W</mi><mi>q</mi></msub>`,
      html`${sub("k", "j", "k")}<mo>=</mo>${sub("x", "j")}<msub><mi>W</mi><mi>k</mi></msub>`,
      html`${sub("v", "j", "v")}<mo>=</mo>${sub("x", "j")}<msub><mi>W</mi><mi>v</mi></msub>`,
    ),
  scores: () =>
    math(
      html`${subsub("s", "i", "j")}<mo>=</mo>${sub("q", "i", "q")}<mo>·</mo>${sub("k", "j", "k")}<mo>=</mo>${over("m")}${subsub("q", "i", "m", "q")}${subsub("k", "j", "m", "k")}`,
    ),
  scaled: (d) =>
    math(
      html`<msub><mover><mi>s</mi><mo>~</mo></mover><mrow><mi>i</mi><mi>j</mi></mrow></msub><mo>=</mo><mfrac>${subsub("s", "i", "j")}<msqrt><mi>${d}</mi></msqrt></mfrac>`,
    ),
  mask: () =>
    math(
      html`${subsub("s", "i", "j")}<mo>=</mo><mrow><mo>−</mo><mi>∞</mi></mrow><mspace width=".5em"/><mtext>where masked</mtext>`,
    ),
  softmax: () =>
    math(
      html`${subsub("w", "i", "j")}<mo>=</mo><mfrac><msup><mi>e</mi><msub><mover><mi>s</mi><mo>~</mo></mover><mrow><mi>i</mi><mi>j</mi></mrow></msub></msup><mrow>${over("l")}<msup><mi>e</mi><msub><mover><mi>s</mi><mo>~</mo></mover><mrow><mi>i</mi><mi>l</mi></mrow></msub></msup></mrow></mfrac>`,
    ),
  sum: () => math(html`${sub("c", "i")}<mo>=</mo>${over("j")}${subsub("w", "i", "j")}${sub("v", "j", "v")}`),
  context: () => math(html`${sub("c", "i")}<mo>∈</mo><msup><mi>ℝ</mi><msub><mi>d</mi><mi>v</mi></msub></msup>`),
};
