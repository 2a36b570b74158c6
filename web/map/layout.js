/** Sizes on the map's canvas: where the matrix, its labels and its tracks are. */
import { cellSize, toPixel, wholeMatrix } from "./viewport.js";

export const LABELLED = 12; // pixels of a cell from which on its tokens are written beside the matrix
export const NUMBERED = 44; // pixels of a cell from which on its weight is written inside
export const TRACK = 26; // pixels of a track's height

/**
 * Return where on a canvas the matrix is drawn, next to its tracks and labels.
 * @param {number} width
 * @param {number} height
 * @param {boolean} labelled  whether tokens are written instead of positions
 * @returns {Box}
 */
export function matrixBox(width, height, labelled) {
  const left = (labelled ? Math.min(104, width * 0.24) : 62) + TRACK;
  const top = (labelled ? 78 : 26) + TRACK;
  return {
    left,
    top,
    width: Math.max(60, width - left - 10),
    height: Math.max(60, height - top - 10),
  };
}

/**
 * Return the view that shows the whole matrix on a canvas, with room for tokens if cells are large enough for them.
 * @param {MapInfo} info
 * @param {CanvasSize} size
 */
export function initialView(info, size) {
  const view = wholeMatrix(info, matrixBox(size.width, size.height, false));
  return cellSize(view, info) >= LABELLED
    ? wholeMatrix(info, matrixBox(size.width, size.height, true))
    : view;
}

/**
 * Return the edges of the visible matrix: those of its box, or closer where the matrix is smaller than the box.
 * @param {MapScene} scene
 */
export function matrixEdges({ view, info, box }) {
  const [left, top] = toPixel(view, info, box, 0, 0);
  const [right, bottom] = toPixel(view, info, box, info.n_k, info.n_q);
  return {
    left: Math.max(box.left, left),
    top: Math.max(box.top, top),
    right: Math.min(box.left + box.width, right),
    bottom: Math.min(box.top + box.height, bottom),
  };
}

/**
 * Draw with the context clipped to a box.
 * @param {CanvasRenderingContext2D} context
 * @param {Box} box
 * @param {() => void} body
 */
export function clipTo(context, { left, top, width, height }, body) {
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  body();
  context.restore();
}
