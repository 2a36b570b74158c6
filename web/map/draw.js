/** Draw the map on a canvas: tiles, cursor, tracks, labels and overview. */
import { drawLabels } from "./draw_labels.js";
import { drawTiles } from "./draw_tiles.js";
import { drawTracks } from "./draw_tracks.js";
import { clipTo, matrixEdges } from "./layout.js";
import { drawOverview } from "./overview.js";
import { cellSize, toPixel } from "./viewport.js";

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
