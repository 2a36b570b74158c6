/** Draw the labels of rows and columns: tokens where cells are large enough, otherwise positions at round numbers. */
import { count } from "../parts/numbers.js";
import { clipped } from "../parts/text.js";
import { LABELLED, matrixEdges, TRACK } from "./layout.js";
import { cellSize, toPixel, visibleCells } from "./viewport.js";

/**
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
