/** Alignment: what each word that was written looked at, as ribbons and as a matrix. */
import { useAnswer } from "../answers.js";
import { along, PALETTES } from "../parts/colour.js";
import { Matrix } from "../parts/matrix.js";
import { argmax, full, number, percent, short } from "../parts/numbers.js";
import { Asked, headName, layerOf } from "../parts/shell.js";
import { clipped, visible } from "../parts/text.js";
import { useWidth } from "../parts/width.js";
import { html, useMemo, useState } from "../ui.js";

const FAINT = 0.02; // a thinner ribbon would not be seen

export function Alignment(props) {
  const { run, attention, state, go, answers, sharpest } = props;
  const found = useAnswer(answers, `runs/${run.run}/alignment`, { l: attention.l, h: state.of === "head" ? state.h : "mean" });
  const cross = attention.kind === "cross";
  return html`<h2>${cross ? "Who wrote, looking at whom" : "Who looks at whom"}</h2>
    <p class="lede">${cross
      ? "Below is what the model wrote, above what it read. To write a word it looked back along these ribbons; the wider, the larger the share."
      : "Below each word looks, above it is looked at. The wider a ribbon, the larger the share."} Hover a word, tap it, or go to it with the Tab key: its fan lights up.</p>
    <div class="row" style=${{ margin: "16px 0" }}>
      <span class="segments" role="group" aria-label="which heads">
        <button type="button" aria-pressed=${state.of !== "head"} onClick=${() => go({ of: "mean" })}>mean of all heads</button>
        <button type="button" aria-pressed=${state.of === "head"} onClick=${() => go({ of: "head" })}>head ${state.h}</button>
      </span>
      ${sharpest && html`<${Sharpest} ...${{ run, attention, sharpest, go }} />`}
    </div>
    <${Asked} of=${found}>${(value) => html`<${Aligned} found=${value} ...${props} />`}<//>`;
}

/** Which layer aligns the most sharply, where this screen opens, or the way to it. */
function Sharpest({ run, attention, sharpest, go }) {
  const best = run.attentions[sharpest.l];
  const peaks = html`of a word the largest share is ${short(sharpest.mean)} in the mean, ${short(sharpest.head)} in head ${sharpest.h}`;
  if (best.l !== attention.l) return html`<button type="button" class="button" onClick=${() => go({ l: best.l, h: sharpest.h })}>sharper: layer ${layerOf(best)}</button>`;
  return html`<span class="soft" data-sharpest>${sharpest.of > 1 ? `Layer ${layerOf(best)} aligns the most sharply of ${sharpest.of}: ` : ""}${peaks}</span>`;
}

function Aligned({ found, attention, state, go }) {
  const weights = useMemo(() => found.weights.map((row) => row.map(number)), [found]);
  const [rows, columns] = [found.rows, found.columns];
  const pinned = state.word !== null && state.word < rows.length ? { row: state.word } : null;
  const [hover, setHover] = useState(null);
  const lit = hover ?? pinned ?? { row: found.real_rows.at(-1) ?? 0 };
  const pin = (one) => { setHover(one); if (one.row !== undefined) go({ word: one.row }, false); };
  const said = { rows, columns, weights, lit };
  return html`<div class="stack">
    <div class="card ribbons"><${Ribbons} ...${said} real=${[new Set(found.real_columns), new Set(found.real_rows)]} setHover=${setHover} pin=${pin} /></div>
    <div class="align">
      <${Grid} ...${said} setHover=${setHover} pin=${pin} />
      <div><div class="card"><output class="readout" aria-live="polite" style=${{ margin: 0, border: 0, padding: 0 }}><${Said} ...${said} /></output></div>
      <p class="soft" style=${{ fontSize: "13px", marginTop: "12px" }}>${state.of === "head" ? headName(attention, state.h) : `the mean of ${attention.heads.length} heads of ${attention.name}`}. Pieces are joined to words: a word’s row is the mean over its pieces, its column their sum. Ribbons under ${percent(FAINT)} are not drawn; the matrix has them all.</p></div>
    </div>
  </div>`;
}

function Said({ rows, columns, weights, lit }) {
  const from = lit.column === undefined;
  const shares = from ? weights[lit.row] : weights.map((row) => row[lit.column]);
  const [mine, others] = from ? [rows[lit.row], columns] : [columns[lit.column], rows];
  const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, 6);
  return html`<span class="soft">${from ? "looking from" : "looked at from all words:"}</span> <b class=${from ? "q" : "k"}>${visible(mine)}</b>
    <table class="pairs"><caption class="hidden">${from ? "what it looks at" : "who looks at it"}</caption>
      <thead class="hidden"><tr><th scope="col">word</th><th scope="col">share</th></tr></thead>
      <tbody>${order.map((at) => html`<tr><td class=${from ? "k" : "q"}>${visible(others[at])}</td><td title=${full(shares[at])}>${short(shares[at])}</td></tr>`)}</tbody></table>`;
}

let ruler = null;
const wide = (text, size) => {
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = `${size}px Georgia, "DejaVu Serif", serif`;
  return ruler.measureText(text).width;
};

/** Two lines of words with ribbons between them; where a line has no room, two columns. */
function Ribbons({ rows, columns, weights, lit, real, setHover, pin }) {
  const [element, width] = useWidth();
  const place = useMemo(() => width && laid(columns, rows, width), [columns, rows, width]);
  return html`<div ref=${element} onPointerLeave=${() => setHover(null)}>${place && html`<${Drawn} ...${{ rows, columns, weights, lit, real, setHover, pin, place, width }} />`}</div>`;
}

function laid(columns, rows, width) {
  for (const size of [21, 18, 15.5]) {
    const line = (words) => {
      const widths = words.map((word) => wide(clipped(word, 20), size) + 2);
      const free = (width * 0.94 - widths.reduce((a, b) => a + b, 0)) / Math.max(1, words.length - 1);
      const gap = Math.max(size * 0.62, Math.min(size * 2.6, free));
      const total = widths.reduce((a, b) => a + b + gap, -gap);
      let at = (width - total) / 2;
      return { total, middles: widths.map((one) => { const middle = at + one / 2; at += one + gap; return middle; }), widths };
    };
    const [top, bottom] = [line(columns), line(rows)];
    if (Math.max(top.total, bottom.total) > width - 8) continue;
    const high = Math.min(300, Math.max(200, width * 0.3));
    return { down: false, size, height: high + size + 16, points: [top.middles.map((x) => [x, size + 12]), bottom.middles.map((x) => [x, high + size + 4])], widths: [top.widths, bottom.widths], high };
  }
  const size = width < 420 ? 14 : 16;
  const step = Math.max(25, size * 1.55);
  const side = Math.min(width * 0.33, Math.max(...[...columns, ...rows].map((word) => wide(clipped(word, 20), size))) + 8);
  const longest = Math.max(columns.length, rows.length);
  const column = (words, x) => words.map((_, at) => [x, step * (at + 0.5 + (longest - words.length) / 2) + 6]);
  return { down: true, size, height: step * longest + 12, points: [column(columns, side), column(rows, width - side)], side, step };
}

function Drawn({ rows, columns, weights, lit, real, setHover, pin, place, width }) {
  const many = rows.length * columns.length > 1600;
  const is = (i, j) => (lit.column === undefined ? i === lit.row : j === lit.column);
  const curve = ([x0, y0], [x1, y1]) => {
    const [mx, my] = [(x0 + x1) / 2, (y0 + y1) / 2];
    return place.down ? `M${x0} ${y0}C${mx} ${y0} ${mx} ${y1} ${x1} ${y1}` : `M${x0} ${y0}C${x0} ${my} ${x1} ${my} ${x1} ${y1}`;
  };
  const ribbons = [];
  weights.forEach((row, i) => row.forEach((w, j) => {
    if (w >= (many && !is(i, j) ? 0.3 : FAINT)) ribbons.push({ i, j, w, on: is(i, j) });
  }));
  ribbons.sort((a, b) => a.on - b.on || a.w - b.w);
  const thick = place.down ? Math.min(16, place.step * 0.6) : 22;
  const hue = lit.column === undefined ? "var(--query)" : "var(--key)";
  const strength = (side, at) => (side ? (lit.column === undefined ? (at === lit.row ? 1 : 0) : weights[at][lit.column]) : lit.column === undefined ? weights[lit.row][at] : at === lit.column ? 1 : 0);
  const word = (side, text, at) => {
    const [x, y] = place.points[side][at];
    const chosen = side ? lit.row === at && lit.column === undefined : lit.column === at;
    const one = side ? { row: at } : { column: at };
    const anchor = place.down ? (side ? "start" : "end") : "middle";
    const shift = place.down ? (side ? 7 : -7) : 0;
    const box = place.down ? [side ? x : 0, y - place.step / 2, place.side, place.step] : [x - Math.max(13, place.widths[side][at] / 2 + 3), y - place.size - 2, Math.max(26, place.widths[side][at] + 6), Math.max(26, place.size + 10)];
    const bright = strength(side, at);
    return html`<g role="button" tabindex="0" aria-pressed=${chosen} aria-label=${`${visible(text)}, ${side ? "looks" : "is looked at"}`} class="dot"
        onPointerEnter=${() => setHover(one)} onFocus=${() => setHover(one)} onClick=${() => pin(one)} onKeyDown=${(event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), pin(one))}>
      <rect x=${box[0]} y=${box[1]} width=${box[2]} height=${box[3]} rx="4" fill=${chosen ? "var(--wash)" : "transparent"} />
      <text x=${x + shift} y=${place.down ? y + place.size * 0.34 : y} text-anchor=${anchor} font-size=${place.size}
        style=${{ fontFamily: "var(--serif)", fontWeight: chosen || bright > 0.25 ? 600 : 400, fill: chosen ? hue : real[side].has(at) || bright > 0.25 ? "var(--ink)" : "var(--soft)" }}>${clipped(text, 20)}</text></g>`;
  };
  const lift = place.size * 0.55;
  return html`<svg data-picture="alignment" viewBox=${`0 0 ${width} ${place.height}`} width=${width} height=${place.height} role="group" aria-label="words and ribbons">
    <g fill="none" stroke-linecap="round">${ribbons.map(({ i, j, w, on }) => {
      const [from, to] = [place.points[0][j], place.points[1][i]];
      const ends = place.down ? [[from[0] + 2, from[1]], [to[0] - 2, to[1]]] : [[from[0], from[1] + lift], [to[0], to[1] - place.size - lift * 0.4]];
      return html`<path d=${curve(...ends)} stroke=${on ? hue : "currentColor"} stroke-width=${Math.max(0.8, w * thick)} stroke-opacity=${on ? 0.35 + 0.6 * w : 0.08 + 0.18 * w} />`;
    })}</g>
    ${columns.map((text, j) => word(0, text, j))}
    ${rows.map((text, i) => word(1, text, i))}
  </svg>`;
}

const colour = (w) => along(PALETTES.viridis, Math.sqrt(w));

function Grid({ rows, columns, weights, lit, setHover, pin }) {
  const cell = Math.max(2, Math.min(24, Math.floor(400 / rows.length)));
  const [at, setAt] = useState(null);
  const best = argmax(weights[lit.row ?? 0] ?? [0]);
  const shown = at ?? (lit.column === undefined ? [lit.row, best] : [argmax(weights.map((row) => row[lit.column])), lit.column]);
  return html`<div onPointerLeave=${() => { setAt(null); setHover(null); }}>
    <${Matrix} rows=${weights} labels=${rows} columns=${columns} name="weights" colour=${colour} cell=${cell} at=${shown} chosen=${lit.row}
      point=${(i, j) => { setAt([i, j]); setHover({ row: i }); }} pick=${(i) => pin({ row: i })} />
    <p class="figures" style=${{ marginTop: "7px", minHeight: "3.2em" }}>${visible(rows[shown[0]])} → ${visible(columns[shown[1]])} = <b>${full(weights[shown[0]][shown[1]])}</b></p>
  </div>`;
}
