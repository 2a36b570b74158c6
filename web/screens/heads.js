/** Heads: all layers and heads at a glance, their habits, and two of them side by side. */
import { useAnswer } from "../answers.js";
import { along, PALETTES } from "../parts/colour.js";
import { paint } from "../parts/matrix.js";
import { argmax, count, full, number, percent, short, sum } from "../parts/numbers.js";
import { all, Asked, headName, layerOf } from "../parts/shell.js";
import { clipped, visible } from "../parts/text.js";
import { stretch } from "../parts/tokens.js";
import { Words } from "../parts/words.js";
import { html, useEffect, useMemo, useRef, useState } from "../ui.js";

const HABITS = ["itself", "previous", "first", "sink", "same", "induction", "punctuation", "far"];
const MEANS = {
  itself: "on itself", previous: "on the token before", first: "on the first token", sink: "on one other token", same: "on the same token, earlier",
  induction: "on what came after the same token before", punctuation: "on punctuation", far: "more than 64 tokens back", spread: "at about how many keys it looks",
};
const CLEAR = 0.4;

export const Heads = (props) => html`<${OfKind} key=${props.attention.kind} ...${props} />`;

function OfKind(props) {
  const { run, attention, state, answers } = props;
  const alike = useMemo(() => run.attentions.filter((one) => one.kind === attention.kind && one.has?.map !== false), [run, attention.kind]);
  const asked = alike.map((one) => useAnswer(answers, `runs/${run.run}/heads`, { l: one.l }));
  const i = Math.min(state.i ?? Math.floor(attention.n_q / 2), attention.n_q - 1);
  const first = useAnswer(answers, `runs/${run.run}/tokens`, stretch(attention, "q", i));
  const there = asked.filter((one) => one.value);
  return html`<h2>All heads</h2>
    <p class="lede">Each square is one head’s attention: a row is a query, a column a key, bright is a large weight. Choose two and compare how they read the same word.</p>
    ${there.length < asked.length && asked.some((one) => one.slow) && html`<p class="soft" role="status">${there.length} of ${asked.length} layers are here…</p>`}
    <${Asked} of=${all(first, ...(there.length ? there : asked))}>${([words, ...layers]) => html`<${Compared} ...${{ ...props, alike, layers, words, i }} />`}<//>`;
}

function Compared({ run, attention, state, go, answers, theme, alike, layers, words, i }) {
  const at = (l, h) => alike.some((one) => one.l === l && one.heads.includes(h));
  const other = alike.length > 1 ? alike[alike.length - 1] : alike[0];
  const A = at(state.la, state.a) ? [state.la, state.a] : [attention.l, state.h];
  const B = at(state.lb, state.b) ? [state.lb, state.b] : [other.l, other.heads.find((h) => other.l !== A[0] || h !== A[1]) ?? other.heads[0]];
  const [turn, setTurn] = useState("a");
  const choose = (l, h, which = turn) => {
    go(which === "a" ? { la: l, a: h, lb: B[0], b: B[1], l, h } : { la: A[0], a: A[1], lb: l, b: h });
    setTurn(which === "a" ? "b" : "a");
  };
  const mark = (l, h) => (l === A[0] && h === A[1] ? "a" : l === B[0] && h === B[1] ? "b" : "");
  const wide = Math.max(...alike.map((one) => one.heads.length));
  const short = layers.every((one) => one.rows === attention.n_q && one.columns === attention.n_k);
  const named = (l, h) => headName(alike.find((one) => one.l === l), h);
  return html`<div class="row" style=${{ margin: "18px 0 12px" }}>
      <span class="soft">a click chooses</span>
      <span class="segments">${["a", "b"].map((which) => html`<button type="button" aria-pressed=${turn === which} onClick=${() => setTurn(which)}>head ${which.toUpperCase()}</button>`)}</span>
      <${Scale} />
      ${!short && html`<span class="soft">pooled to ${layers[0].rows} × ${layers[0].columns}${layers.every((one) => one.exact) ? "" : "; sampled, not exact"}</span>`}
    </div>
    <div class="aisle"><div class="minis" style=${{ gridTemplateColumns: `max-content repeat(${wide}, minmax(24px, 84px))` }}>
      <span></span>${Array.from({ length: wide }, (_, h) => html`<span class="nr">${h}</span>`)}
      ${layers.map((layer) => html`<span class="layer">layer ${layerOf(alike.find((one) => one.l === layer.l))}</span>
        ${layer.maps.map((map) => html`<${Mini} key=${`${layer.l}/${map.h}`} map=${map} mark=${mark(layer.l, map.h)} name=${named(layer.l, map.h)} masks=${attention.mask !== "everyone"} choose=${() => choose(layer.l, map.h)} />`)}
        ${Array.from({ length: wide - layer.maps.length }, () => html`<span></span>`)}`)}
    </div></div>
    <h2 style=${{ margin: "38px 0 0" }}>Two readings</h2>
    <p class="lede">The same word in the two heads that were chosen: what each of them looks at.</p>
    <div class="picker" style=${{ margin: "14px 0 16px" }}><h3>query</h3>
      <${Words} words=${words} at=${i} choose=${(i) => go({ i })} label="the query: which word looks" /></div>
    <${Readings} ...${{ run, answers, A, B, i, named, layers, words: short && attention.kind !== "cross" && attention.n_q === attention.n_k ? words : null }} />
    <${Habits} ...${{ alike, layers, mark, choose, named }} />`;
}

function Scale() {
  return html`<span class="legend"><span class="end">0</span>
    <svg width="120" height="10" viewBox="0 0 32 1" preserveAspectRatio="none" aria-hidden="true">
      ${Array.from({ length: 32 }, (_, at) => html`<rect x=${at} width="1.05" height="1" shape-rendering="crispEdges" fill=${`rgb(${weightColour((at / 31) ** 2)})`} />`)}
    </svg><span class="end">1</span><span>one scale for all heads</span></span>`;
}

/** A weight's colour goes by its root: among ten words, most weights are small. */
const weightColour = (w) => along(PALETTES.viridis, Math.sqrt(number(w)));
const CLEAR_CELL = [0, 0, 0, 0];
/** Where there is a mask, nothing at all is masked: it stays clear, and the hatch below is seen. */
const maskedColour = (w) => (w === 0 ? CLEAR_CELL : weightColour(w));

function Mini({ map, mark, name, masks, choose }) {
  const canvas = useRef(null);
  useEffect(() => paint(canvas.current, map.share, masks ? maskedColour : weightColour), [map]);
  return html`<button type="button" class=${`mini ${mark} ${masks ? "masked" : ""}`} aria-label=${`${name}${mark ? `, chosen as ${mark.toUpperCase()}` : ""}`} title=${name} onClick=${choose}>
    <canvas ref=${canvas}></canvas>${mark && html`<span class=${`mark ${mark}`}>${mark.toUpperCase()}</span>`}</button>`;
}

/** Of a short text the rows are in the small maps already; of a long one they are asked for. */
function Readings({ run, answers, A, B, i, named, layers, words }) {
  const here = ([l, h]) => {
    const row = words && layers.find((layer) => layer.l === l)?.maps.find((map) => map.h === h)?.share[i];
    return row && { token: words.tokens[i], tokens: words.tokens, keys: [...row.keys()], n_k: row.length, steps: [{ name: "weights", numbers: row }] };
  };
  const [a, b] = [A, B].map(([l, h]) => {
    const value = here([l, h]);
    const asked = useAnswer(answers, value ? null : `runs/${run.run}/trace`, { l, h, i });
    return value ? { value, error: null, slow: false } : asked;
  });
  return html`<${Asked} of=${all(a, b)}>${(traces) => {
    const rows = traces.map((trace) => trace.steps.find((step) => step.name === "weights").numbers.map(number));
    const best = rows.map(argmax);
    const tops = traces.map((trace, at) => trace.tokens[best[at]]);
    const same = traces[0].keys[best[0]] === traces[1].keys[best[1]];
    const top = Math.max(...rows.flat());
    return html`<div class="readings">
      ${traces.map((trace, at) => html`<div class="reading card"><h3><span class=${`mark ${"ab"[at]}`}>${"AB"[at]}</span>${named(...[A, B][at])}</h3>
        <${Fan} trace=${trace} weights=${rows[at]} top=${top} which=${"ab"[at]} /></div>`)}
    </div>
    <p class="said">${same
      ? html`Both look most at <b class="k">${visible(tops[0])}</b>: ${percent(rows[0][best[0]])} in A, ${percent(rows[1][best[1]])} in B.`
      : html`From <b class="q">${visible(traces[0].token)}</b>, A looks most at <b class="k">${visible(tops[0])}</b> (${percent(rows[0][best[0]])}), B at <b class="k">${visible(tops[1])}</b> (${percent(rows[1][best[1]])}).`}</p>`;
  }}<//>`;
}

const LINES = 14;

/** What one query looks at: the largest weights, in the order of the text. */
function Fan({ trace, weights, top, which }) {
  const order = weights.map((_, at) => at).sort((a, b) => weights[b] - weights[a]).slice(0, LINES).sort((a, b) => a - b);
  const rest = sum(weights.filter((_, at) => !order.includes(at))) + (trace.rest?.weight ?? 0);
  return html`<table class="ledger" style=${{ marginTop: "10px" }}><caption class="hidden">what ${visible(trace.token)} looks at</caption>
    <thead class="hidden"><tr><th scope="col">key</th><th scope="col">weight</th><th scope="col">drawn</th></tr></thead>
    <tbody>${order.map((at) => html`<tr><td style=${{ fontFamily: "var(--serif)" }}>${clipped(trace.tokens[at], 24)}</td><td title=${full(weights[at])}>${short(weights[at])}</td>
      <td class="share"><svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect y="1" height="8" width=${Math.max((100 * weights[at]) / top, 0.3)} fill=${which === "a" ? "var(--query)" : "var(--key)"} /></svg></td></tr>`)}
      ${weights.length > LINES && html`<tr><td class="soft">${count(trace.n_k - LINES)} others</td><td title=${full(rest)}>${short(rest)}</td><td></td></tr>`}
    </tbody></table>`;
}

function Habits({ alike, layers, mark, choose, named }) {
  const heads = useMemo(() => layers.flatMap((layer) => (layer.habits ?? []).map((one) => ({ l: layer.l, ...one })).sort((x, y) => x.h - y.h)), [layers]);
  const [by, setBy] = useState("layer");
  if (!heads.length) return html`<p class="soft" style=${{ marginTop: "30px" }}>Habits are measured on short texts only; this one is long.</p>`;
  const columns = [...HABITS.filter((habit) => heads.some((head) => head[habit] !== null && head[habit] !== undefined)), "spread"];
  const sorted = by === "layer" ? heads : [...heads].sort((x, y) => (by === "kind" ? (x.kind < y.kind ? -1 : 1) : (y[by] ?? -1) - (x[by] ?? -1)));
  const sorting = (name, label, title, kind = "") => html`<th scope="col" class=${kind} aria-sort=${by === name ? (name === "layer" || name === "kind" ? "ascending" : "descending") : undefined}>
    <button type="button" title=${title} onClick=${() => setBy(name)}>${label}</button></th>`;
  return html`<h2 style=${{ margin: "38px 0 0" }}>Habits</h2>
    <p class="lede">The share of its weight that each of these ${count(heads.length)} heads spends by habit. One that takes ${percent(CLEAR)} or more is marked and names the head’s kind.</p>
    <div class="scroller" tabindex="0" role="region" aria-label="habits of all heads" style=${{ marginTop: "14px" }}><table class="habits">
      <thead><tr>${sorting("layer", "head", "by layer", "name")}${sorting("kind", "kind", "by kind", "name")}${columns.map((habit) => sorting(habit, habit, MEANS[habit]))}</tr></thead>
      <tbody>${sorted.map((head) => html`<tr key=${`${head.l}/${head.h}`} class=${mark(head.l, head.h)}>
        <td class="name"><button type="button" onClick=${() => choose(head.l, head.h)}>${named(head.l, head.h)}</button></td><td class="name">${head.kind}</td>
        ${columns.map((habit) => html`<td class=${habit !== "spread" && head[habit] >= CLEAR ? "much" : ""} title=${full(head[habit])}>${habit === "spread" ? short(head[habit], 3) : percent(head[habit])}</td>`)}
      </tr>`)}</tbody></table></div>`;
}
