/** A small matrix on a canvas. Cells are pointed at by mouse, finger or arrow keys. */
import { html, useEffect, useRef } from "../ui.js";
import { clipped, visible } from "./text.js";
import { useWidth } from "./width.js";

const ROOM = 13; // pixels that a slanted label needs to the next one

/** Paint numbers as cells of one pixel each; the page scales them up without smoothing. */
export function paint(canvas, rows, colour) {
  const [height, width] = [rows.length, rows[0]?.length ?? 0];
  if (!height || !width) return;
  [canvas.width, canvas.height] = [width, height];
  const picture = new ImageData(width, height);
  let at = 0;
  for (const row of rows) {
    for (const x of row) {
      const [r, g, b, a = 255] = colour(x);
      picture.data.set([r, g, b, a], at);
      at += 4;
    }
  }
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

/**
 * @param {{rows: number[][], colour: (x: number) => number[], labels: string[], name: string, cell: number, at: [number, number] | null,
 *   chosen?: number, point: (i: number, m: number) => void}} props  `cell` is the height of a row; `columns` are their labels
 */
export function Matrix({ rows, colour, labels, columns, name, cell, at, chosen, point, pick }) {
  const canvas = useRef(null);
  useEffect(() => paint(canvas.current, rows, colour), [rows, colour]);
  const [height, width] = [rows.length, rows[0].length];
  const [frame, wide] = useWidth();
  const named = (j) => wide / width >= ROOM || j === at?.[1]; // where there is no room for all, the one that is pointed at
  const place = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const inside = (position, size, n) => Math.max(0, Math.min(n - 1, Math.floor((position / size) * n)));
    return [inside(event.clientY - box.top, box.height, height), inside(event.clientX - box.left, box.width, width)];
  };
  const key = (event) => {
    const [i, m] = at ?? [0, 0];
    if (event.key === "Enter" && pick) return pick(i, m);
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -width], End: [0, width] }[event.key];
    if (!step) return undefined;
    event.preventDefault();
    event.stopPropagation();
    return point(Math.max(0, Math.min(height - 1, i + step[0])), Math.max(0, Math.min(width - 1, m + step[1])));
  };
  return html`<div class="matrix">
    ${columns && html`<div class="columns" aria-hidden="true" style=${{ gridTemplateColumns: `repeat(${columns.length}, 1fr)` }}>
      ${columns.map((label, j) => html`<span class=${j === at?.[1] ? "chosen" : ""}>${named(j) ? clipped(label, 12) : ""}</span>`)}</div>`}
    <div class="rows" aria-hidden="true" style=${{ gridTemplateRows: `repeat(${height}, ${cell}px)` }}>
      ${cell >= 12 && labels.map((label, i) => html`<span class=${i === chosen || i === at?.[0] ? "chosen" : ""}>${visible(label)}</span>`)}
    </div>
    <div ref=${frame} style=${{ position: "relative", height: `${cell * height}px` }} role="application" tabindex="0" aria-roledescription="matrix"
        aria-label=${`${name}: ${height} rows of ${width}; arrow keys go from cell to cell`}
        onPointerMove=${(event) => point(...place(event))} onPointerDown=${(event) => (pick ?? point)(...place(event))} onKeyDown=${key}
        onFocus=${() => !at && point(0, 0)}>
      <canvas ref=${canvas} style=${{ height: `${cell * height}px` }}></canvas>
      ${at && html`<svg aria-hidden="true" style=${{ position: "absolute", inset: 0, width: "100%", height: "100%", pointerEvents: "none" }}
          viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none">
        <rect x=${at[1]} y=${at[0]} width="1" height="1" fill="none" stroke="currentColor" stroke-width="2" vector-effect="non-scaling-stroke" />
      </svg>`}
    </div>
  </div>`;
}
