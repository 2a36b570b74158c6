/** Draw the tracks: left of the rows the entropy of each query, above the columns the weight that each key receives. */
import { clipTo, matrixEdges, TRACK } from "./layout.js";
import { trackKey } from "./tile_cache.js";
import { tileLevel, toPixel, visibleCorners } from "./viewport.js";

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
 * Draw one track along axis 0, the keys, or axis 1, the queries; bars are relative to the largest visible one.
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
      const [a, b] = [pixel(cell), pixel(Math.min(n, cell + bin))];
      const long = Math.max(1, (value / most) * (TRACK - 3));
      const wide = Math.max(b - a - (b - a > 6 ? 1 : 0), 1 / dense);
      context.fillStyle = exact ? colours.bar : colours.warn;
      if (axis === 0) context.fillRect(a, area.top + TRACK - long, wide, long);
      else context.fillRect(area.left + TRACK - long, a, long, wide);
    }
  });
}
