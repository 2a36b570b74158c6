/** What is said beside each step: in words, with this query's own numbers; and what one points at, in full. */
import { argmax, count, full, percent, short, sum } from "../parts/numbers.js";
import { visible } from "../parts/text.js";
import { html } from "../ui.js";

export function told(at) {
  const { trace, row, attention, step, j, m } = at;
  const [query, key] = [html`<b class="q">${visible(trace.token)}</b>`, html`<b class="k">${visible(row.tokens[j])}</b>`];
  const seen = row.steps.mask.filter((x) => x !== -Infinity).length;
  return SAID[step]({ ...at, query, key, seen, best: argmax(row.weights), d: attention.d_k, feature: typeof m === "number" ? m : null });
}

const equals = (left, x) => html`${left} = <b>${full(x)}</b>`;
const bracketed = (x) => (x < 0 ? `(${short(x)})` : short(x));
const hint = (text) => html`<span class="soft">${text}</span>`;

const SAID = {
  tokens: ({ attention, query, m, words }) => ({
    title: "The text in pieces",
    prose: html`<p>A model reads pieces of words, each by its number. This attention has ${count(attention.n_q)} ${attention.n_q === 1 ? "query" : "queries"} and ${count(attention.n_k)} ${attention.n_k === 1 ? "key" : "keys"}. We follow the query ${query}.</p>`,
    readout: typeof m === "number" && words.tokens[m - words.start] !== undefined ? html`position ${count(m)}: <b>${visible(words.tokens[m - words.start])}</b>` : hint("Point at a piece. → is the next step."),
  }),

  embedding: ({ trace, query, feature }) => ({
    title: "A vector for the word",
    prose: html`<p>${query} comes to this layer as ${count(trace.stream.before.length)} numbers: its embedding, and whatever the layers before have added to it.</p>`,
    readout: feature !== null && feature < trace.stream.before.length ? equals(html`x<sub>${feature}</sub>`, trace.stream.before[feature]) : hint("Point at a cell to read its number."),
  }),

  qkv: ({ trace, row, query, m }) => ({
    title: "Query, keys, values",
    prose: html`<p>Three learnt matrices look at every vector. From ${query} they make a <b class="q">query</b>; from every word a <b class="k">key</b>, which says what it can be found by, and a <b class="v">value</b>, which is what it gives.</p>
      <p class="soft">x is what the head is given: in most models the vector of the step before, normalised; with rotary positions q and k are turned by their places.</p>`,
    readout: !m?.of ? hint("Point at a cell to read its number.")
      : m.of === "q" ? equals(html`q<sub>${m.at}</sub>`, trace.query[m.at])
      : equals(html`${m.of}<sub>${m.at[1]}</sub> of <b>${visible(row.tokens[m.at[0]])}</b>`, (m.of === "k" ? trace.key : trace.value)[m.at[0]]?.[m.at[1]]),
  }),

  scores: ({ trace, row, query, key, j, feature, usual }) => ({
    title: "How well they match",
    prose: usual.scores
      ? html`<p>The score of ${query} and ${key} is a dot product: multiply feature by feature and add up. Here ${trace.terms[j].length} products make <b>${short(row.steps.scores[j])}</b>.</p>
        <p class="soft">Large where both vectors have large numbers of the same sign in the same places.</p>`
      : html`<p>The score of ${query} and ${key} is the sum of ${trace.terms[j].length} numbers: <b>${short(row.steps.scores[j])}</b>.</p>`,
    readout: feature === null || feature >= trace.terms[j].length ? equals(html`s(${query}, ${key})`, row.steps.scores[j])
      : html`product ${feature} of ${trace.terms[j].length}<br />${trace.factors
          ? html`<span class="q">${full(trace.factors.query[feature])}</span> × <span class="k">${full(trace.factors.key[j][feature])}</span><br />` : ""}
        = <b>${full(trace.terms[j][feature])}</b><br />sum up to here: ${short(sum(trace.terms[j].slice(0, feature + 1)))}`,
  }),

  scaled: ({ trace, row, key, j, d, usual }) => ({
    title: usual.scaled ? "Made smaller" : "Scaled",
    prose: usual.scaled
      ? html`<p>A sum of ${d} products grows with √${d}. Every score is therefore multiplied by <b>${short(trace.scale)}</b>, so that the softmax that follows stays soft and can learn.</p>`
      : html`<p>Every score is multiplied by <b>${short(trace.scale)}</b>.</p>`,
    readout: html`${short(row.steps.scores[j])} × ${full(trace.scale)}<br />${equals(key, row.steps.scaled[j])}`,
  }),

  capped: ({ row, key, j }) => ({
    title: "Held within bounds",
    prose: html`<p>No score may leave a fixed range: ${row.formulas.capped}.</p>`,
    readout: equals(key, row.steps.capped[j]),
  }),

  biased: ({ row, key, j }) => ({
    title: "With a bias",
    prose: html`<p>Something is added that depends on the places alone: ${row.formulas.biased}.</p>`,
    readout: equals(key, row.steps.biased[j]),
  }),

  mask: ({ row, query, key, j, seen, trace }) => ({
    title: "Who may be seen",
    prose: row.masks
      ? html`<p>${query} may see ${count(seen)} of the ${count(row.tokens.length)} keys shown. The others become −∞, which the softmax turns into a weight of exactly zero.</p><p class="figures soft">${row.formulas.masked}</p>`
      : html`<p>This attention hides nothing: ${query} may see all ${count(trace.n_k)} keys, so no score changes here. In a decoder, words that are not yet written would be −∞.</p>`,
    readout: row.steps.mask[j] === -Infinity ? html`${key} is masked: −∞` : equals(key, row.steps.mask[j]),
  }),

  softmax: ({ row, query, key, j, best, trace, usual }) => ({
    title: "Scores become shares",
    prose: html`<p>${usual.softmax ? "The exponential makes every score positive; dividing by the sum makes them shares of one." : "Every score is divided by the sum of all, which makes them shares of one."} ${query} gives most, <b>${percent(row.weights[best])}</b>, to <b class="k">${visible(row.tokens[best])}</b>. An even look at all would give ${percent(1 / row.steps.mask.concat(Array(trace.rest.keys).fill(0)).filter((x) => x !== -Infinity).length)} to each.</p>
      ${trace.sink !== null && trace.sink !== undefined ? html`<p>A learnt sink takes a part as well, so the weights sum to less than one.</p>` : ""}`,
    readout: html`${equals(html`w(${query}, ${key})`, row.weights[j])}${trace.lse === null ? "" : html`<br /><span class="soft">= exp(${short(row.steps.mask[j])} − ${bracketed(trace.lse)}); ln Σ eˢ = ${full(trace.lse)}</span>`}`,
  }),

  sum: ({ trace, row, query, feature }) => {
    const parts = feature === null || feature >= trace.context.length ? null : row.weights.map((w, at) => [w, trace.value[at][feature], at]).sort((a, b) => Math.abs(b[0] * b[1]) - Math.abs(a[0] * a[1]));
    return {
      title: "A mixture of values",
      prose: html`<p>Every key hands over its <b class="v">value</b>, as much of it as its weight says. What is strong in a heavy key is strong in the sum: the context of ${query}.</p>`,
      readout: !parts ? hint("Point at a column to see which products make its sum.") : html`feature ${feature}<br />
        ${parts.slice(0, 5).map(([w, x, at]) => html`${short(w)} × ${short(x)} = ${short(w * x)} <span class="k">${visible(row.tokens[at])}</span><br />`)}
        ${parts.length > 5 ? html`<span class="soft">and ${count(parts.length - 5 + trace.rest.keys)} more</span><br />` : ""}Σ = <b>${full(trace.context[feature])}</b>`,
    };
  },

  context: ({ trace, query, feature }) => ({
    title: "What the head found",
    prose: html`<p>This vector is all that the head says about ${query}. Joined with those of the other heads and mixed by one more matrix, it is added to what ${query} was.</p>`,
    readout: feature !== null && feature < trace.context.length ? equals(html`c<sub>${feature}</sub>`, trace.context[feature]) : hint("Point at a bar to read its number."),
  }),
};
