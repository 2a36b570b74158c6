/** Map: the whole matrix of a head, from all of it at once down to the single weight. */
import { useAnswer } from "../answers.js";
import { boxOf, cellsIn, draw, NAMED, overview, tileKey, trackKey, WRITTEN } from "../map/draw.js";
import { AGGREGATES, limits, Look } from "../map/look.js";
import { Tiles } from "../map/tiles.js";
import { fitting, held, level, pixels, seen, toCell, zoomed } from "../map/view.js";
import { along, PALETTES } from "../parts/colour.js";
import { useKeys } from "../parts/keys.js";
import { count, full, short } from "../parts/numbers.js";
import { Asked, headName, themed } from "../parts/shell.js";
import { visible } from "../parts/text.js";
import { stretch } from "../parts/tokens.js";
import { html, useCallback, useEffect, useMemo, useRef, useState } from "../ui.js";

const EFFORTS = [1, 4, 16]; // what is sampled is asked for once more, with more effort, while one looks at it

export function Map(props) {
  const { run, attention, state, answers } = props;
  const info = useAnswer(answers, `runs/${run.run}/map`, { l: attention.l, h: state.h });
  return html`<h2>The whole matrix</h2>
    <p class="lede">${count(attention.n_q)} queries down, ${count(attention.n_k)} keys across: ${count(attention.n_q * attention.n_k)} weights of ${headName(attention, state.h)}. Zoom in until every cell has its number.</p>
    <${Asked} of=${info}>${(found) => html`<${Viewer} key=${attention.n_q + "x" + attention.n_k} info=${found} ...${props} />`}<//>`;
}

function Viewer({ run, attention, info, state, go, answers, transport, theme, root }) {
  const frame = useRef(null);
  const canvas = useRef(null);
  const [size, setSize] = useState(null);
  const [quality, setQuality] = useState({ exact: 0, sampled: 0, samples: 0, missing: 0, waiting: 0 });
  const [cell, setCell] = useState(null);
  const [effort, setEffort] = useState(EFFORTS[0]);
  const look = useMemo(() => new Look(), []);
  const redraw = useRef(() => {});
  const ask = useMemo(() => lazily(answers, run, () => redraw.current()), [answers, run]);
  const tiles = useMemo(() => new Tiles((path, query, signal) => transport.bytes(`runs/${run.run}/${path}`, query, signal), () => redraw.current()), [run, transport]);
  useEffect(() => () => tiles.close(), [tiles]);

  const query = { l: attention.l, h: state.h, agg: AGGREGATES[state.agg]?.from ?? "share" };
  const whole = size && fittingWell(info, size);
  const live = useRef(null); // the view while it moves: the address follows a moment later
  const told = state.x !== null && state.y !== null && state.z !== null ? { x: state.x, y: state.y, z: state.z } : null;
  const view = live.current ?? told ?? whole;
  const box = size && boxOf(size.width, size.height, view && pixels(view, info) >= NAMED);
  const cursor = cell ? { i: cell.i, j: cell.j } : null;

  const scene = size && view && {
    ...size, view: held(view, info, box), info, box, tiles, look, state, query, cursor, hatch: null, colours: null,
    token: (axis, at) => ask.token(attention, axis, at), weight: (i, j) => ask.weight(query, i, j),
    colourAt: (t) => along(PALETTES[state.palette] ?? PALETTES.viridis, t),
  };

  const paint = useCallback(() => {
    const now = redraw.scene;
    if (!now || !canvas.current) return;
    const context = canvas.current.getContext("2d");
    const colours = Object.fromEntries(["paper", "raised", "ink", "soft", "line", "faint", "warn", "bar", "query", "key", "sans", "serif", "figures"].map((name) => [name, themed(root, name)]));
    const drawn = draw(context, { ...now, colours, hatch: hatched(context, colours) });
    setQuality((old) => {
      const next = { ...drawn, waiting: now.tiles.waiting };
      return Object.keys(next).every((name) => next[name] === old[name]) ? old : next;
    });
  }, [root]);
  redraw.scene = scene;
  redraw.current = () => {
    cancelAnimationFrame(redraw.frame);
    redraw.frame = requestAnimationFrame(paint);
  };

  useEffect(() => {
    const measure = () => {
      if (!frame.current) return;
      const { clientWidth: width, clientHeight: height } = frame.current;
      const dense = Math.min(2, devicePixelRatio || 1);
      [canvas.current.width, canvas.current.height] = [Math.round(width * dense), Math.round(height * dense)];
      setSize({ width, height, dense });
      redraw.current();
    };
    const watching = new ResizeObserver(measure);
    watching.observe(frame.current);
    return () => watching.disconnect();
  }, []);

  useEffect(() => {
    if (!scene) return;
    const { z } = level(scene.view, info, size.dense);
    const visibleTiles = [...seen(scene.view, info, box, z)];
    const all = (z > 0 ? [{ z: 0, x: 0, y: 0 }] : []).concat(visibleTiles);
    const half = (buffer) => new Uint16Array(buffer);
    const line = (buffer) => new Float32Array(buffer);
    const span = info.tile * 2 ** (info.max_zoom - z);
    const { i0, i1, j0, j1 } = cellsIn(scene);
    const lines = [["received", j0, j1], ["entropy", i0, i1]].flatMap(([kind, from, to]) =>
      Array.from({ length: Math.max(0, Math.ceil(to / span) - Math.floor(from / span)) }, (_, at) => ({ kind, x: Math.floor(from / span) + at })));
    tiles.want([
      ...all.map((at) => ({ key: tileKey(query, at), path: `tiles/${at.z}/${at.x}/${at.y}`, query, read: half, effort: at.z === z ? effort : 1 })),
      ...lines.map(({ kind, x }) => ({ key: trackKey(query, kind, z, x), path: `tracks/${z}/${x}`, query: { l: query.l, h: query.h, kind }, read: line })),
    ]);
    redraw.current();
  });

  useEffect(() => setEffort(EFFORTS[0]), [scene && JSON.stringify([scene.view, query])]);
  useEffect(() => {
    const next = EFFORTS[EFFORTS.indexOf(effort) + 1];
    if (!quality.sampled || quality.missing || quality.waiting || !next || !transport.runs) return undefined;
    const timer = setTimeout(() => setEffort(next), 400);
    return () => clearTimeout(timer);
  }, [quality, effort]);

  const settle = useRef(0);
  const [, again] = useState(0);
  const move = (next, step = false) => {
    live.current = held(next, info, box);
    again((n) => n + 1);
    clearTimeout(settle.current);
    const rounded = () => {
      const { x, y, z } = live.current ?? next;
      live.current = null;
      const fine = Math.max(0, Math.ceil(z - info.max_zoom)) + 2;
      go({ x: Number(x.toFixed(fine)), y: Number(y.toFixed(fine)), z: Number(z.toFixed(4)) }, step);
    };
    if (step) rounded();
    else settle.current = setTimeout(rounded, 180);
  };
  const by = (zoom) => move(zoomed(scene.view, info, box, zoom, box.left + box.width / 2, box.top + box.height / 2), true);
  const home = () => { live.current = null; go({ x: null, y: null, z: null }); };
  const jump = (i, j) => {
    live.current = null;
    const z = Math.max(scene.view.z, info.max_zoom + Math.log2(WRITTEN + 8));
    go({ x: j + 0.5, y: i + 0.5, z: Number(z.toFixed(4)) });
    point(i, j, true);
  };

  // What is pointed at is asked of the server, in float64.
  const asked = useRef({ timer: 0, key: "" });
  const point = (i, j, now = false) => {
    const key = `${query.l}/${query.h}/${i}/${j}`;
    if (key === asked.current.key || i < 0 || j < 0 || i >= info.n_q || j >= info.n_k) return;
    asked.current.key = key;
    clearTimeout(asked.current.timer);
    asked.current.timer = setTimeout(async () => {
      const found = await answers.ask(`runs/${run.run}/cell`, { l: query.l, h: query.h, i, j }).promise.catch((error) => ({ i, j, error }));
      if (asked.current.key === key) setCell(found);
    }, now ? 0 : 70);
  };
  useEffect(() => {
    if (cell) { asked.current.key = ""; point(cell.i, cell.j, true); }
  }, [query.l, query.h]);

  const pointers = useGestures({ frame, scene, move, point, info, box });
  const key = (event) => {
    if (event.target !== frame.current || !scene) return;
    const stride = 60 / pixels(scene.view, info);
    const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (arrow && event.shiftKey) {
      const from = cursor ?? { i: Math.floor(scene.view.y), j: Math.floor(scene.view.x) };
      point(from.i + arrow[1], from.j + arrow[0], true);
    } else if (arrow) move({ ...scene.view, x: scene.view.x + arrow[0] * stride, y: scene.view.y + arrow[1] * stride });
    else if (event.key === "+" || event.key === "=") by(1);
    else if (event.key === "-") by(-1);
    else if (event.key === "Home") home();
    else if (event.key === "End") jump(info.n_q - 1, info.n_k - 1);
    else if (event.key === "Enter") point(Math.min(info.n_q - 1, Math.floor(scene.view.y)), Math.min(info.n_k - 1, Math.floor(scene.view.x)), true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const first = useRef(null);
  useKeys(root, (event) => {
    if (event.key !== "g") return false;
    first.current?.focus();
    first.current?.select();
    return true;
  });

  const bin = scene ? level(scene.view, info, size.dense).bin : 1;
  return html`
    <div class="mapbar">
      <span class="segments" role="group" aria-label="what a pixel shows">${Object.entries(AGGREGATES).filter(([, { from }]) => info.aggs.includes(from)).map(([name, { means }]) => html`
        <button type="button" title=${means} aria-pressed=${state.agg === name} onClick=${() => go({ agg: name, lim: null })}>${name}</button>`)}</span>
      <span class="segments" role="group" aria-label="scale">${["log", "linear"].map((name) => html`<button type="button" aria-pressed=${state.scale === name} onClick=${() => go({ scale: name })}>${name}</button>`)}</span>
      <label class="labelled">colours <select value=${state.palette} onChange=${(event) => go({ palette: event.currentTarget.value })}>${Object.keys(PALETTES).map((name) => html`<option value=${name} selected=${name === state.palette}>${name}</option>`)}</select></label>
      <span class="segments" role="group" aria-label="zoom"><button type="button" aria-label="farther" onClick=${() => by(-1)}>−</button><button type="button" aria-label="closer" onClick=${() => by(1)}>+</button><button type="button" onClick=${home}>all</button></span>
      <form class="goto" onSubmit=${(event) => {
        event.preventDefault();
        const [i, j] = ["i", "j"].map((name) => Number(event.currentTarget.elements[name].value));
        if (Number.isInteger(i) && Number.isInteger(j)) jump(Math.max(0, Math.min(info.n_q - 1, i)), Math.max(0, Math.min(info.n_k - 1, j)));
      }}>
        <label class="labelled">query <input class="field" name="i" ref=${first} inputmode="numeric" pattern="[0-9]*" required autocomplete="off" /></label>
        <label class="labelled">key <input class="field" name="j" inputmode="numeric" pattern="[0-9]*" required autocomplete="off" /></label>
        <button class="button">go</button>
      </form>
    </div>
    <div class="mapped"><div class="viewer" ref=${frame} role="application" tabindex="0" aria-roledescription="map" onKeyDown=${key} ...${pointers}
        aria-label=${`map of ${count(info.n_q)} queries and ${count(info.n_k)} keys; arrows move it, plus and minus zoom, Shift and arrows go from cell to cell, Home shows all`}>
      <canvas ref=${canvas} data-picture="map"></canvas>
    </div>
    <div class="stack mapside">
      <div><${Quality} of=${quality} bin=${bin} /></div>
      <output class="readout" aria-live="polite"><${Cell} cell=${cell} bin=${bin} /></output>
      <${Scale} ...${{ state, go, info, bin, sampled: quality.sampled > 0, theme }} />
    <details class="map-table"><summary>the largest weights of ${cursor ? `query ${count(cursor.i)}` : "a query"}, as a table</summary>
      ${cursor ? html`<${Largest} ...${{ run, answers, jump, l: query.l, h: query.h, i: cursor.i }} />` : html`<p class="soft">Point at a cell first, or go to one.</p>`}
    </details></div></div>`;
}

const fittingWell = (info, size) => {
  const plain = fitting(info, boxOf(size.width, size.height, false));
  return pixels(plain, info) >= NAMED ? fitting(info, boxOf(size.width, size.height, true)) : plain;
};

/** How true the picture is: exact, a sample, or a coarser one until the right one comes. */
function Quality({ of, bin }) {
  const pixel = bin === 1 ? "a pixel is one weight" : `a pixel is ${count(bin)} × ${count(bin)} weights`;
  const waits = of.waiting > 0 ? `, ${of.waiting} on ${of.waiting === 1 ? "its" : "their"} way` : "";
  const below = html`<span class="soft" style=${{ display: "block", marginTop: "7px", fontSize: "13px" }}>${pixel}</span>`;
  if (!of.exact && !of.sampled) return html`<span class="quality" role="status">○ computing${waits}</span>${below}`;
  if (of.missing) return html`<span class="quality sampled" role="status" data-exact="0" data-missing=${of.missing}>◌ coarser than it will be${waits}</span>${below}`;
  if (!of.sampled) return html`<span class="quality" role="status" data-exact="1">● exact${waits}</span>${below}`;
  return html`<span class="quality sampled" role="status" data-exact="0">◌ sampled: ${of.sampled} of ${of.sampled + of.exact} tiles, at least ${count(of.samples)} ${of.samples === 1 ? "row" : "rows"} of each pixel${waits}</span>${below}`;
}

/** What the map shows of one query, in words and numbers. */
function Largest({ run, answers, jump, l, h, i }) {
  const trace = useAnswer(answers, `runs/${run.run}/trace`, { l, h, i });
  return html`<${Asked} of=${trace}>${(found) => {
    const weights = found.steps.find((step) => step.name === "weights").numbers;
    const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 20);
    return html`<table class="pairs"><thead><tr><th scope="col">key</th><th scope="col">place</th><th scope="col">weight</th></tr></thead>
      <tbody>${order.map((at) => html`<tr><td><button type="button" onClick=${() => jump(i, found.keys[at])}>${visible(found.tokens[at])}</button></td><td>${count(found.keys[at])}</td><td title=${full(weights[at])}>${short(weights[at])}</td></tr>`)}</tbody></table>`;
  }}<//>`;
}

function Cell({ cell, bin }) {
  if (!cell) return html`<span class="soft">Point at the map: its weight is then computed in double precision. Drag, scroll or pinch; arrow keys work too.</span>`;
  if (cell.error) return html`<span class="soft">${cell.error.message}</span>`;
  const name = (text) => (text === null || text === undefined ? "" : html` “${visible(text)}”`);
  return html`query ${count(cell.i)}<b class="q">${name(cell.query)}</b> → key ${count(cell.j)}<b class="k">${name(cell.key)}</b><br />
    ${cell.visible ? html`weight <b>${full(cell.p)}</b> <span class="soft">(q·k ${short(cell.dot)}, scaled ${short(cell.scaled)}${cell.lse === null ? "" : `, ln Σ ${short(cell.lse)}`})</span>` : html`masked: this query may not see this key`}
    ${bin > 1 && html`<br /><span class="soft">one of the ${count(bin * bin)} in this pixel</span>`}`;
}

/** The colours and their limits. Nothing of this asks the server. */
function Scale({ state, go, info, bin, sampled }) {
  const canvas = useRef(null);
  const [low, high] = limits(state, bin, info);
  useEffect(() => {
    const context = canvas.current.getContext("2d");
    [canvas.current.width, canvas.current.height] = [256, 16];
    for (let at = 0; at < 256; at += 1) {
      context.fillStyle = `rgb(${along(PALETTES[state.palette] ?? PALETTES.viridis, at / 255)})`;
      context.fillRect(at, 0, 1, 16);
    }
    if (!sampled) return;
    context.strokeStyle = "#fff9";
    context.lineWidth = 2;
    for (let at = -16; at < 256; at += 12) {
      context.beginPath();
      context.moveTo(at, 16);
      context.lineTo(at + 16, 0);
      context.stroke();
    }
  }, [state.palette, sampled]);
  const set = (which) => (event) => {
    const next = [low, high];
    next[which] = Number(event.currentTarget.value);
    if (next[0] >= next[1]) next[1 - which] = next[which] + (which ? -1 : 1);
    go({ lim: next.join(",") }, false);
  };
  const named = (power) => (power === 0 ? "1" : power > 0 ? short(2 ** power, 3) : html`2<sup>${String(power).replace("-", "−")}</sup>`);
  const unit = state.agg === "lift" ? " ×" : "";
  return html`<div class="scale">
    <canvas ref=${canvas} aria-hidden="true"></canvas>
    <div class="ends"><span>≤ ${named(low)}${unit}</span><span class="soft">${state.agg}, ${state.scale}${sampled ? ", sampled" : ""}</span><span>≥ ${named(high)}${unit}</span></div>
    <div class="limits">
      <label for="telescope-low">from</label><input id="telescope-low" type="range" min="-32" max="7" step="1" value=${low} aria-valuetext=${`2 to the power ${low}`} onInput=${set(0)} />
      <label for="telescope-high">to</label><input id="telescope-high" type="range" min="-31" max="8" step="1" value=${high} aria-valuetext=${`2 to the power ${high}`} onInput=${set(1)} />
    </div>
    <div class="legend" style=${{ marginTop: "6px" }}><i class="chip hatch" style=${{ width: "22px", height: "12px" }}></i> masked</div>
    <div class="legend" style=${{ marginTop: "6px" }}><span>bars above: what each key is given; on the left: the entropy of each query, how evenly it looks. What is orange or dashed is of a sample.</span>
      ${state.lim && html`<button type="button" class="button" style=${{ minHeight: "26px", padding: "0 8px", fontSize: "12.5px" }} onClick=${() => go({ lim: null })}>limits that follow the zoom</button>`}</div>
  </div>`;
}

/** Drag, wheel and pinch. */
function useGestures({ frame, scene, move, point, info, box }) {
  const down = useRef(new globalThis.Map());
  const now = useRef(null);
  now.current = { scene, move, point, info, box };
  useEffect(() => {
    const wheel = (event) => {
      if (!now.current.scene) return;
      event.preventDefault();
      const edge = frame.current.getBoundingClientRect();
      const by = Math.max(-1, Math.min(1, -event.deltaY * (event.deltaMode ? 0.05 : 0.0035)));
      now.current.move(zoomed(now.current.scene.view, now.current.info, now.current.box, by, event.clientX - edge.left, event.clientY - edge.top));
    };
    const element = frame.current;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, []);
  const at = (event) => {
    const edge = frame.current.getBoundingClientRect();
    return { left: event.clientX - edge.left, top: event.clientY - edge.top };
  };
  const inside = ({ left, top }) => left >= box.left && top >= box.top && left < box.left + box.width && top < box.top + box.height;
  const cellAt = (place) => {
    const [x, y] = toCell(scene.view, info, box, place.left, place.top);
    return [Math.floor(y), Math.floor(x)];
  };
  return {
    onPointerDown(event) {
      if (!scene) return;
      const place = at(event);
      const map = overview(scene);
      if (map && place.left >= map.left && place.top >= map.top && place.left <= map.left + map.width && place.top <= map.top + map.height) {
        move({ ...scene.view, x: ((place.left - map.left) / map.width) * info.n_k, y: ((place.top - map.top) / map.height) * info.n_q }, true);
        return;
      }
      frame.current.setPointerCapture(event.pointerId);
      down.current.set(event.pointerId, place);
      if (inside(place)) point(...cellAt(place), true);
    },
    onPointerMove(event) {
      if (!scene) return;
      const place = at(event);
      const old = down.current.get(event.pointerId);
      if (!old) {
        if (inside(place)) point(...cellAt(place));
        return;
      }
      const each = pixels(scene.view, info);
      const other = [...down.current].find(([id]) => id !== event.pointerId)?.[1];
      down.current.set(event.pointerId, place);
      if (other) {
        const apart = (a) => Math.hypot(a.left - other.left, a.top - other.top) || 1;
        move(zoomed(scene.view, info, box, Math.log2(apart(place) / apart(old)), (place.left + other.left) / 2, (place.top + other.top) / 2));
      } else {
        frame.current.classList.add("dragging");
        move({ ...scene.view, x: scene.view.x - (place.left - old.left) / each, y: scene.view.y - (place.top - old.top) / each });
      }
    },
    onPointerUp(event) {
      down.current.delete(event.pointerId);
      frame.current.classList.remove("dragging");
    },
    onPointerCancel(event) {
      down.current.delete(event.pointerId);
    },
    onDblClick(event) {
      const place = at(event);
      if (scene && inside(place)) move(zoomed(scene.view, info, box, 1.5, place.left, place.top), true);
    },
  };
}

const TOGETHER = 32; // cells of a row, in one answer

/** Tokens and cells as the map comes to need them: what is not here yet is asked for, and drawn when it comes. */
function lazily(answers, run, arrived) {
  const [tokens, rows] = [new globalThis.Map(), new globalThis.Map()];
  let asking = 0;
  const waiting = [];
  const next = () => {
    while (asking < 6 && waiting.length) {
      const { key, query } = waiting.pop();
      asking += 1;
      answers.transport.ask(`runs/${run.run}/cells`, query).then(({ p }) => rows.set(key, p), () => rows.delete(key)).finally(() => {
        asking -= 1;
        arrived();
        next();
      });
    }
  };
  return {
    token(attention, axis, at) {
      if (attention.has?.tokens === false) return count(at);
      const part = stretch(attention, axis, at);
      const key = `${part.l}/${axis}/${part.start ?? 0}`;
      if (!tokens.has(key)) {
        tokens.set(key, null);
        answers.transport.ask(`runs/${run.run}/tokens`, part).then((found) => tokens.set(key, found.tokens), () => tokens.set(key, [])).finally(arrived);
      }
      return tokens.get(key)?.[at - (part.start ?? 0)] ?? count(at);
    },
    /** The weight, or null: it is masked, or not here yet. */
    weight({ l, h }, i, j) {
      const from = Math.floor(j / TOGETHER) * TOGETHER;
      const key = `${l}/${h}/${i}/${from}`;
      if (!rows.has(key)) {
        rows.set(key, null);
        waiting.push({ key, query: { l, h, i, j: from } });
        if (waiting.length > 64) rows.delete(waiting.shift().key);
        if (rows.size > 1000) rows.clear();
        next();
      }
      return rows.get(key)?.[j - from] ?? null;
    },
  };
}

/** Fine slanted lines: the sign of what is masked. */
function hatched(context, colours) {
  const cell = document.createElement("canvas");
  cell.width = cell.height = 8;
  const pen = cell.getContext("2d");
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = colours.line;
  pen.lineWidth = 1.5;
  for (const by of [-8, 0, 8]) {
    pen.beginPath();
    pen.moveTo(by - 1, 9);
    pen.lineTo(by + 9, -1);
    pen.stroke();
  }
  return context.createPattern(cell, "repeat");
}
