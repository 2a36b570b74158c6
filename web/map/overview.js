/** The overview: the whole matrix in a corner of the map, with a frame around the visible part. */
import { clamp } from "../parts/numbers.js";
import { tilePicture } from "./draw_tiles.js";
import { tileKey } from "./tile_cache.js";
import { visibleCells, visibleCorners } from "./viewport.js";

/**
 * Return where on the canvas the overview is, or null while more than 60 % of the matrix is visible.
 * @param {{view: View, info: MapInfo, box: Box}} scene
 * @returns {Box | null}
 */
export function overviewBox(scene) {
  const { info, box } = scene;
  const { i0, i1, j0, j1 } = visibleCells(scene);
  if ((i1 - i0) * (j1 - j0) > 0.6 * info.n_q * info.n_k) return null;
  const most = Math.min(116, box.width / 3);
  const width = Math.max(18, most * Math.min(1, info.n_k / info.n_q));
  const height = Math.max(18, most * Math.min(1, info.n_q / info.n_k));
  return {
    left: box.left + box.width - width - 12,
    top: box.top + box.height - height - 12,
    width,
    height,
  };
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 */
export function drawOverview(context, scene) {
  const { info, tiles, query, colours, hatch } = scene;
  const map = overviewBox(scene);
  if (!map) return;
  context.fillStyle = colours.raised;
  context.fillRect(map.left - 3, map.top - 3, map.width + 6, map.height + 6);
  context.fillStyle = hatch;
  context.fillRect(map.left, map.top, map.width, map.height);
  const root = { z: 0, x: 0, y: 0 };
  const tile = tiles.get(tileKey(query, root));
  const bin = 2 ** info.max_zoom;
  context.imageSmoothingEnabled = true;
  if (tile) {
    const picture = tilePicture(tile, root, scene);
    context.drawImage(
      picture,
      0,
      0,
      info.n_k / bin,
      info.n_q / bin,
      map.left,
      map.top,
      map.width,
      map.height,
    );
  }
  const [[x0, y0], [x1, y1]] = visibleCorners(scene);
  /** @type {(x: number) => number} */
  const across = (x) => map.left + (clamp(x, 0, info.n_k) / info.n_k) * map.width;
  /** @type {(y: number) => number} */
  const down = (y) => map.top + (clamp(y, 0, info.n_q) / info.n_q) * map.height;
  const [left, top] = [across(x0), down(y0)];
  const [width, height] = [Math.max(5, across(x1) - left), Math.max(5, down(y1) - top)];
  for (const [line, colour] of /** @type {const} */ ([
    [3.5, "#000"],
    [1.5, "#fff"],
  ])) {
    context.lineWidth = line;
    context.strokeStyle = colour;
    context.strokeRect(left, top, width, height);
  }
  context.lineWidth = 1;
  context.strokeStyle = colours.line;
  context.strokeRect(map.left - 3.5, map.top - 3.5, map.width + 7, map.height + 7);
}
