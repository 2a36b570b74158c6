/** Geometry: every token before and after attention, in one plane. Context moves each towards what it looks at. */
import { useAnswer } from "../answers.js";
import { argmax, full, percent, short, sum } from "../parts/numbers.js";
import { Asked, layerOf } from "../parts/shell.js";
import { clipped, visible } from "../parts/text.js";
import { useWidth } from "../parts/width.js";
import { html, useEffect, useMemo, useRef, useState } from "../ui.js";

const MOST = 512;

export function Geometry(props) {
  const { run, attention, state, answers } = props;
  const from = Math.max(0, Math.min((state.i ?? 0) - MOST / 2, attention.n_q - MOST));
  const found = useAnswer(answers, `runs/${run.run}/geometry`, attention.n_q <= MOST ? { l: attention.l } : { l: attention.l, start: from, stop: from + MOST });
  return html`<h2>Before and after</h2>
    <p class="lede">Every token as a point: hollow as it came to layer ${layerOf(attention)}, filled as attention left it. Both in one plane, the two directions in which they differ most.</p>
    <${Asked} of=${found}>${(value) => html`<${Plane} key=${value.l + "/" + value.start} found=${value} ...${props} />`}<//>`;
}

function Plane({ found, attention, state, go, theme }) {
  const { tokens, before, after } = found;
  const n = tokens.length;
  const i = Math.max(0, Math.min(n - 1, (state.i ?? found.start + argmax(found.moved.map((cosine) => -cosine))) - found.start));
  const j = state.j !== null && state.j - found.start >= 0 && state.j - found.start < n ? state.j - found.start : null;
  const [trails, setTrails] = useState(true);
  const [alpha, setAlpha] = useState(state.alpha);
  useEffect(() => setAlpha(state.alpha), [state.alpha]);
  const [playing, play] = usePlay(setAlpha, (end) => go({ alpha: end }, false));
  const slide = (value) => { setAlpha(value); go({ alpha: value }, false); };
  return html`<div class="plane" style=${{ marginTop: "18px" }}>
    <div class="stack" style=${{ gap: "14px" }}>
      <div class="card" style=${{ padding: "8px" }}><${Scatter} ...${{ tokens, before, after, alpha, i, j, trails, theme, explained: found.explained, choose: (at) => go({ i: found.start + at }) }} /></div>
      <div class="slide">
        <button type="button" class="button" onClick=${() => play(alpha)}>${playing ? "■ stop" : "▶ play"}</button>
        <input type="range" min="0" max="1" step="0.01" value=${alpha} aria-label="from before attention, 0, to after it, 1" onInput=${(event) => slide(Number(event.currentTarget.value))} />
        <span class="figures" style=${{ minWidth: "8.5ch" }}>${alpha === 0 ? "before" : alpha === 1 ? "after" : `α ${alpha.toFixed(2)}`}</span>
        <label class="labelled"><input type="checkbox" checked=${trails} onChange=${(event) => setTrails(event.currentTarget.checked)} /> trails</label>
      </div>
    </div>
    <aside class="aside card">
      <h2 class="token q">${visible(tokens[i])}</h2>
      <dl class="facts">
        <dt>the plane holds, of all variance</dt><dd>${percent(sum(found.explained))}</dd>
        <dt>across, down</dt><dd>${found.explained.map((share) => percent(share)).join(" + ")}</dd>
        <dt>cos(before, after) of this token</dt><dd title=${full(found.moved[i])}>${short(found.moved[i])}</dd>
      </dl>
      <p class="soft" style=${{ fontSize: "13.5px" }}>Near in the plane need not be near: what the plane leaves out is ${percent(1 - sum(found.explained))}. The cosines below are of the whole vectors.</p>
      ${found.cosines ? html`<${Neighbours} ...${{ found, tokens, i, j, pick: (at) => go({ j: found.start + at }) }} />` : html`<p class="soft">Cosines of pairs are printed for texts of at most 64 tokens.</p>`}
    </aside>
  </div>`;
}

const EDGE = 46;

/** Drawn at the size it has on the page, so that words can be read on a phone too. */
function Scatter(props) {
  const [element, width] = useWidth();
  return html`<div ref=${element}>${width > 0 && html`<${Points} ...${props} wide=${width} high=${Math.round(Math.max(320, Math.min(580, width * 0.65)))} />`}</div>`;
}

function Points({ tokens, before, after, alpha, i, j, trails, explained, choose, wide, high }) {
  const [hover, setHover] = useState(null);
  const place = useMemo(() => {
    const points = [...before, ...after];
    const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const scale = Math.min((wide - 2 * EDGE - 40) / (x1 - x0 || 1), (high - 2 * EDGE) / (y1 - y0 || 1)); // one scale: a plane, not a stretched one
    return ([x, y]) => [wide / 2 + (x - (x0 + x1) / 2) * scale, high / 2 - (y - (y0 + y1) / 2) * scale];
  }, [before, after, wide, high]);
  const [starts, ends] = useMemo(() => [before.map(place), after.map(place)], [place]);
  const now = starts.map((from, at) => from.map((x, axis) => x + (ends[at][axis] - x) * alpha));
  const labels = useMemo(() => apart(now, tokens, wide, i, j), [now, tokens, wide, i, j]);
  const key = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    choose(Math.max(0, Math.min(tokens.length - 1, i + step)));
  };
  const strong = (at) => at === i || at === j || at === hover;
  return html`<svg class="scatter" data-picture="geometry" viewBox=${`0 0 ${wide} ${high}`} width=${wide} height=${high} role="application" tabindex="0" onKeyDown=${key}
      aria-label=${`${tokens.length} tokens in a plane; arrow keys go from token to token. Chosen: ${visible(tokens[i])}`} onPointerLeave=${() => setHover(null)}>
    <line x1="16" x2=${wide - 16} y1=${high - 20} y2=${high - 20} stroke="var(--line)" /><text x=${wide - 16} y=${high - 6} text-anchor="end" font-size="11.5" fill-opacity=".75">first direction, ${percent(explained[0])} of the variance</text>
    <line x1="16" x2="16" y1="16" y2=${high - 20} stroke="var(--line)" /><text transform="rotate(-90)" x="-16" y="11" text-anchor="end" font-size="11.5" fill-opacity=".75">second, ${percent(explained[1])}</text>
    ${trails && starts.map((from, at) => html`<line x1=${from[0]} y1=${from[1]} x2=${now[at][0]} y2=${now[at][1]} stroke=${at === i ? "var(--query)" : at === j ? "var(--key)" : "currentColor"} stroke-opacity=${strong(at) ? 0.95 : 0.28} stroke-width=${strong(at) ? 2 : 1} />`)}
    ${trails && starts.map((from, at) => html`<circle cx=${from[0]} cy=${from[1]} r="3.6" fill="var(--raised)" stroke=${at === i ? "var(--query)" : at === j ? "var(--key)" : "currentColor"} stroke-opacity=${strong(at) ? 1 : 0.5} />`)}
    ${now.map((at, place) => html`<circle class="dot" cx=${at[0]} cy=${at[1]} r=${place === i ? 7 : 5} fill=${place === i ? "var(--query)" : place === j ? "var(--key)" : "var(--bar)"} stroke="var(--raised)"
      onPointerEnter=${() => setHover(place)} onClick=${() => choose(place)} />`)}
    ${now.map((at, place) => (labels[place] || strong(place)) && html`<text class="dot" x=${at[0] + (labels[place]?.dx ?? 9)} y=${at[1] + (labels[place]?.dy ?? 4)} text-anchor=${labels[place]?.anchor ?? "start"} font-size=${place === i ? 17 : 15}
      style=${{ fontFamily: "var(--serif)", fontWeight: strong(place) ? 600 : 400, fill: place === i ? "var(--query)" : place === j ? "var(--key)" : "var(--ink)", paintOrder: "stroke", stroke: "var(--raised)", strokeWidth: "4px" }}
      onPointerEnter=${() => setHover(place)} onClick=${() => choose(place)}>${clipped(tokens[place], 18)}</text>`)}
  </svg>`;
}

/** A place for each label beside its point, where none stands yet; one that has none is shown when it is pointed at. */
function apart(points, tokens, room, ...first) {
  const taken = points.map(([x, y]) => ({ left: x - 5, right: x + 5, top: y - 5, bottom: y + 5 }));
  const labels = [];
  const order = [...points.keys()].sort((a, b) => first.includes(b) - first.includes(a));
  for (const at of order) {
    const [x, y] = points[at];
    const wide = Math.min([...visible(tokens[at])].length, 18) * 8.4 + 4;
    for (const [dx, dy, anchor] of [[9, 5, "start"], [-9, 5, "end"], [0, -10, "middle"], [0, 21, "middle"], [8, -8, "start"], [-8, -8, "end"], [8, 17, "start"], [-8, 17, "end"]]) {
      const left = x + dx - { start: 0, middle: wide / 2, end: wide }[anchor];
      const spot = { left, right: left + wide, top: y + dy - 13, bottom: y + dy + 4 };
      const free = taken.every((other, owner) => owner === at || other.right < spot.left || other.left > spot.right || other.bottom < spot.top || other.top > spot.bottom);
      if (!free || spot.left < 22 || spot.right > room - 4) continue;
      taken.push(spot);
      labels[at] = { dx, dy, anchor };
      break;
    }
  }
  return labels;
}

/** The true nearness of the chosen token to the others, before and after. */
function Neighbours({ found, tokens, i, j, pick }) {
  const { before, after } = found.cosines;
  const rows = tokens.map((_, at) => at).filter((at) => at !== i).sort((a, b) => after[i][b] - after[i][a]).slice(0, 9);
  if (j !== null && j !== i && !rows.includes(j)) rows.push(j);
  return html`<table class="pairs"><caption class="hidden">cosines with ${visible(tokens[i])}</caption>
    <thead><tr><th scope="col">cosine with</th><th scope="col">before</th><th scope="col">after</th><th scope="col">change</th></tr></thead>
    <tbody>${rows.map((at) => html`<tr><td><button type="button" class=${at === j ? "k" : ""} aria-pressed=${at === j} onClick=${() => pick(at)}>${visible(tokens[at])}</button></td>
      <td title=${full(before[i][at])}>${short(before[i][at], 3)}</td><td title=${full(after[i][at])}>${short(after[i][at], 3)}</td><td>${signedShort(after[i][at] - before[i][at])}</td></tr>`)}</tbody></table>`;
}

const signedShort = (x) => `${x > 0 ? "+" : ""}${x.toFixed(3)}`.replace("-", "−");

/** From before to after in a second and a half; there and back at once for those who do not want things to move. */
function usePlay(set, done) {
  const frame = useRef(0);
  const [playing, setPlaying] = useState(false);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);
  const play = (from) => {
    cancelAnimationFrame(frame.current);
    if (playing) return setPlaying(false);
    const begin = from > 0.99 ? 0 : from;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return done(from > 0.5 ? 0 : 1);
    setPlaying(true);
    const start = performance.now();
    const tick = (time) => {
      const t = Math.min(1, (time - start) / 1500);
      set(Number((begin + (1 - begin) * (t * t * (3 - 2 * t))).toFixed(3)));
      if (t < 1) frame.current = requestAnimationFrame(tick);
      else { setPlaying(false); done(1); }
    };
    frame.current = requestAnimationFrame(tick);
    return undefined;
  };
  return [playing, play];
}

