/** Draw the map on a canvas: tiles, cursor, tracks, labels and overview. */
import { count } from "../../parts/numbers.js";
import { clipped } from "../../parts/text.js";
import { drawTiles } from "./draw_tiles.js";
import { trackKey } from "./fetching.js";
import {
  LABELLED,
  TRACK,
  cellSize,
  clipTo,
  drawOverview,
  matrixEdges,
  tileLevel,
  toPixel,
  visibleCells,
  visibleCorners,
} from "./viewport.js";

/**
 * Draw the whole scene and return how exact the visible tiles are.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 * @returns {Quality}
 */
export function draw(context, scene) {
  const { width, height, dense, colours } = scene;
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.clearRect(0, 0, width, height);
  const quality = drawTiles(context, scene);
  drawCursor(context, scene);
  drawTracks(context, scene);
  drawLabels(context, scene);
  const { left, top, right, bottom } = matrixEdges(scene);
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, right - left + 1, bottom - top + 1);
  drawOverview(context, scene);
  return quality;
}

/**
 * Draw a frame around the chosen cell, at least 7 pixels wide.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 */
function drawCursor(context, { view, info, box, cursor, colours }) {
  if (!cursor) return;
  const size = Math.max(cellSize(view, info), 7);
  const [x, y] = toPixel(view, info, box, cursor.j + 0.5, cursor.i + 0.5);
  clipTo(context, box, () => {
    for (const [width, colour] of /** @type {const} */ ([
      [3.5, colours.paper],
      [1.5, colours.ink],
    ])) {
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.strokeRect(x - size / 2, y - size / 2, size, size);
    }
  });
}

/**
 * Return the pattern of masked cells: fine slanted lines.
 * @param {CanvasRenderingContext2D} context
 * @param {Record<string, string>} colours
 */
export function hatchPattern(context, colours) {
  const cell = document.createElement("canvas");
  cell.width = cell.height = 8;
  const pen = /** @type {CanvasRenderingContext2D} */ (cell.getContext("2d"));
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = colours.line;
  pen.lineWidth = 1.5;
  for (const shift of [-8, 0, 8]) {
    pen.beginPath();
    pen.moveTo(shift - 1, 9);
    pen.lineTo(shift + 9, -1);
    pen.stroke();
  }
  return /** @type {CanvasPattern} */ (context.createPattern(cell, "repeat"));
}

/**
 * Draw the labels of rows and columns: tokens where cells are large enough, otherwise positions at
 * round numbers.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 */
export function drawLabels(context, scene) {
  if (cellSize(scene.view, scene.info) >= LABELLED) drawTokens(context, scene);
  else drawPositions(context, scene);
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
}

/**
 * Write the token of every visible row and column.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 */
function drawTokens(context, scene) {
  const { view, info, box, colours, token, cursor } = scene;
  const { left, top } = matrixEdges(scene);
  const { i0, i1, j0, j1 } = visibleCells(scene);
  const longest = Math.max(3, Math.floor((box.left - TRACK - 12) / 6.6));
  context.font = `${cellSize(view, info) >= 15 ? 13 : 11}px ${colours.serif}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let i = i0; i < i1; i += 1) {
    const y = toPixel(view, info, box, 0, i + 0.5)[1];
    if (y < box.top + 4 || y > box.top + box.height - 4) continue;
    context.fillStyle = i === cursor?.i ? colours.query : colours.ink;
    context.fillText(clipped(token("q", i), longest), left - TRACK - 8, y);
  }
  context.textAlign = "left";
  for (let j = j0; j < j1; j += 1) {
    const x = toPixel(view, info, box, j + 0.5, 0)[0];
    if (x < box.left + 4 || x > box.left + box.width - 4) continue;
    context.save();
    context.translate(x, top - TRACK - 8);
    context.rotate(-Math.PI / 3);
    context.fillStyle = j === cursor?.j ? colours.key : colours.ink;
    context.fillText(clipped(token("k", j), 11), 0, 0);
    context.restore();
  }
}

/**
 * Write positions at round distances.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 */
function drawPositions(context, scene) {
  const { view, info, box, colours } = scene;
  const { left, top } = matrixEdges(scene);
  const { i0, i1, j0, j1 } = visibleCells(scene);
  context.font = `11px ${colours.figures}`;
  context.fillStyle = colours.soft;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const down = roundStep(46 / cellSize(view, info));
  for (let i = Math.ceil(i0 / down) * down; i < i1; i += down) {
    const y = toPixel(view, info, box, 0, i + 0.5)[1];
    if (y >= box.top && y < box.top + box.height - 5)
      context.fillText(count(i), left - TRACK - 8, y);
  }
  context.textAlign = "center";
  context.textBaseline = "bottom";
  const across = roundStep((box.width < 320 ? 58 : 92) / cellSize(view, info));
  for (let j = Math.ceil(j0 / across) * across; j < j1; j += across) {
    const x = toPixel(view, info, box, j + 0.5, 0)[0];
    if (x >= box.left && x < box.left + box.width - 26)
      context.fillText(count(j), x, top - TRACK - 6);
  }
}

/**
 * Return the smallest of 1, 2, 5, 10, 20, … cells that is at least `cells`.
 * @param {number} cells
 */
export function roundStep(cells) {
  const power = 10 ** Math.floor(Math.log10(cells));
  return Math.max(1, ([1, 2, 5].find((factor) => factor * power >= cells) ?? 10) * power);
}

// Draw the tracks: left of the rows the entropy of each query, above the columns the weight that
// each key receives.

/**
 * Draw both tracks; bars from a sample are orange.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 */
export function drawTracks(context, scene) {
  const { info, box } = scene;
  const edge = matrixEdges(scene);
  drawTrack(context, scene, "received", info.n_k, 0, {
    left: box.left,
    top: edge.top - TRACK - 2,
    width: box.width,
    height: TRACK,
  });
  drawTrack(context, scene, "entropy", info.n_q, 1, {
    left: edge.left - TRACK - 2,
    top: box.top,
    width: TRACK,
    height: box.height,
  });
}

/**
 * Draw one track along axis 0, the keys, or axis 1, the queries; bars are relative to the largest
 * visible one.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 * @param {string} kind
 * @param {number} n
 * @param {0 | 1} axis
 * @param {Box} area
 */
function drawTrack(context, scene, kind, n, axis, area) {
  const { view, info, box, dense, tiles, query, colours } = scene;
  const { z, bin } = tileLevel(view, info, dense);
  const span = info.tile * bin;
  const [from, to] = visibleCorners(scene).map((corner) => corner[axis]);
  /** @type {{cell: number, value: number, exact: boolean}[]} */
  const bars = [];
  const last = Math.min(Math.ceil(n / span) - 1, Math.floor(to / span));
  for (let at = Math.max(0, Math.floor(from / span)); at <= last; at += 1) {
    const track = tiles.get(trackKey(query, kind, z, at));
    track?.values.forEach((value, pixel) => {
      const cell = at * span + pixel * bin;
      const visible = cell < n && cell + bin > from && cell < to;
      if (!Number.isNaN(value) && visible) bars.push({ cell, value, exact: track.exact });
    });
  }
  const most = Math.max(...bars.map(({ value }) => value), 1e-30);
  /** @type {(cell: number) => number} */
  const pixel = (cell) => Math.round(toPixel(view, info, box, cell, cell)[axis] * dense) / dense;
  clipTo(context, area, () => {
    for (const { cell, value, exact } of bars) {
      const a = pixel(cell);
      const b = pixel(Math.min(n, cell + bin));
      const long = Math.max(1, (value / most) * (TRACK - 3));
      const wide = Math.max(b - a - (b - a > 6 ? 1 : 0), 1 / dense);
      context.fillStyle = exact ? colours.bar : colours.warn;
      if (axis === 0) context.fillRect(a, area.top + TRACK - long, wide, long);
      else context.fillRect(area.left + TRACK - long, a, long, wide);
    }
  });
}
