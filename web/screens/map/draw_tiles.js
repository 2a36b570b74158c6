/** Draw the tiles of the map, and grid and weights once the cells are large enough. */
import { readableInk } from "../../parts/colour.js";
import { short } from "../../parts/numbers.js";
import { colourLimits, log2Shift, paintTile, positionIn } from "./colouring.js";
import { tileKey } from "./fetching.js";
import {
  LABELLED,
  NUMBERED,
  cellSize,
  clipTo,
  tileLevel,
  toPixel,
  visibleCells,
  visibleTiles,
} from "./viewport.js";

/**
 * Draw the visible tiles; a tile that has not arrived is shown enlarged from the nearest coarser
 * one.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 * @returns {Quality}
 */
export function drawTiles(context, scene) {
  const { view, info, box, dense, tiles, query, hatch } = scene;
  const { z } = tileLevel(view, info, dense);
  const cells = info.tile * 2 ** (info.max_zoom - z);
  const quality = { exact: 0, sampled: 0, samples: Infinity, missing: 0 };
  /** Round to device pixels, so that tiles meet without seams. */
  /** @type {(x: number, y: number) => number[]} */
  const corner = (x, y) =>
    toPixel(view, info, box, x, y).map((at) => Math.round(at * dense) / dense);
  clipTo(context, box, () => {
    for (const { x, y } of visibleTiles(view, info, box, z)) {
      const { tile, up } = nearestTile(tiles, query, { z, x, y });
      const [left, top] = corner(x * cells, y * cells);
      const [right, bottom] = corner(
        Math.min(info.n_k, (x + 1) * cells),
        Math.min(info.n_q, (y + 1) * cells),
      );
      if (!tile || up) quality.missing += 1;
      context.fillStyle = tile ? hatch : scene.colours.faint;
      context.fillRect(left, top, right - left, bottom - top);
      if (!tile) continue;
      const part = info.tile / 2 ** up;
      const fromX = (x % 2 ** up) * part;
      const fromY = (y % 2 ** up) * part;
      const [wide, high] = corner((x + 1) * cells, (y + 1) * cells);
      const picture = tilePicture(tile, { z: z - up, x: x >> up, y: y >> up }, scene);
      context.imageSmoothingEnabled = (wide - left) * dense < info.tile;
      context.drawImage(picture, fromX, fromY, part, part, left, top, wide - left, high - top);
      if (tile.exact) quality.exact += 1;
      else {
        quality.sampled += 1;
        quality.samples = Math.min(quality.samples, tile.samples);
        markSampled(context, scene, left, top, right, bottom);
      }
    }
    if (cellSize(view, info) >= LABELLED) drawGrid(context, scene);
    if (cellSize(view, info) >= NUMBERED) drawWeights(context, scene);
  });
  return quality;
}

/**
 * Return a tile's picture in the chosen colours, painted again only when the colours change.
 * @param {Tile} tile
 * @param {TilePlace} place
 * @param {PaintedScene} scene
 */
export function tilePicture(tile, place, { info, tables, chosen }) {
  const bin = 2 ** (info.max_zoom - place.z);
  const table = tables.get(chosen, bin, info);
  if (!tile.picture || tile.tableName !== table.name) {
    const partial = info.n_k % bin; // keys in a pixel of the last column
    const column = Math.floor(info.n_k / bin) - place.x * info.tile;
    const inside = partial && column >= 0 && column < info.tile;
    const dependsOnKeys =
      log2Shift(chosen.aggregate, 2, info) !== log2Shift(chosen.aggregate, 1, info);
    const last =
      inside && dependsOnKeys
        ? { column, colours: tables.get(chosen, bin, info, partial).colours }
        : null;
    tile.picture = paintTile(tile.values, info.tile, table.colours, last);
    tile.tableName = table.name;
  }
  return tile.picture;
}

/**
 * Return a tile, or the nearest coarser one in the cache, and how many levels `up` it is.
 * @param {MapScene["tiles"]} tiles
 * @param {MapQuery} query
 * @param {TilePlace} place
 */
function nearestTile(tiles, query, { z, x, y }) {
  for (let up = 0; up <= z; up += 1) {
    const tile = tiles.get(tileKey(query, { z: z - up, x: x >> up, y: y >> up }));
    if (tile) return { tile, up };
  }
  return { tile: null, up: 0 };
}

/**
 * Mark a sampled tile with a dashed frame and the word, so that it is not taken for an exact one.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 * @param {number} left
 * @param {number} top
 * @param {number} right
 * @param {number} bottom
 */
function markSampled(context, { colours }, left, top, right, bottom) {
  context.save();
  context.strokeStyle = colours.warn;
  context.lineWidth = 1.5;
  context.setLineDash([5, 4]);
  context.strokeRect(left + 1.5, top + 1.5, right - left - 3, bottom - top - 3);
  if (right - left > 90 && bottom - top > 30) {
    context.font = `11px ${colours.sans}`;
    const wide = context.measureText("sampled").width + 10;
    context.fillStyle = colours.raised;
    context.fillRect(left + 5, top + 5, wide, 17);
    context.fillStyle = colours.warn;
    context.fillText("sampled", left + 10, top + 17);
  }
  context.restore();
}

/**
 * Draw lines between the visible cells.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 */
function drawGrid(context, scene) {
  const { view, info, box, colours } = scene;
  const { i0, i1, j0, j1 } = visibleCells(scene);
  context.beginPath();
  for (let j = j0; j <= j1; j += 1) {
    const [x, y] = toPixel(view, info, box, j, i0);
    context.moveTo(x, y);
    context.lineTo(x, toPixel(view, info, box, j, i1)[1]);
  }
  for (let i = i0; i <= i1; i += 1) {
    const [x, y] = toPixel(view, info, box, j0, i);
    context.moveTo(x, y);
    context.lineTo(toPixel(view, info, box, j1, i)[0], y);
  }
  context.strokeStyle = colours.paper;
  context.globalAlpha = 0.55;
  context.lineWidth = 1;
  context.stroke();
  context.globalAlpha = 1;
}

/**
 * Write the weights into the visible cells. They come from the API in full precision, not from the
 * tile's pixels.
 * @param {CanvasRenderingContext2D} context
 * @param {PaintedScene} scene
 */
function drawWeights(context, scene) {
  const { view, info, box, chosen, weight, colours } = scene;
  const { i0, i1, j0, j1 } = visibleCells(scene);
  const [low, high] = colourLimits(chosen, 1, info);
  const position = positionIn({ low, high, scale: chosen.scale ?? "log" });
  const size = cellSize(view, info);
  context.font = `${Math.min(12.5, size / 4.6)}px ${colours.figures}`;
  /** @type {(text: string) => boolean} */
  const fits = (text) => context.measureText(text).width <= size - 4;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let i = i0; i < i1; i += 1) {
    for (let j = j0; j < j1; j += 1) {
      const p = weight(i, j);
      if (p === null) continue;
      const [x, y] = toPixel(view, info, box, j + 0.5, i + 0.5);
      context.fillStyle = readableInk(
        scene.colourAt(position(Math.log2(p) + log2Shift(chosen.aggregate, 1, info))),
      );
      const text = [3, 2, 1].map((digits) => short(p, digits)).find(fits) ?? short(p, 1);
      context.fillText(text, x, y);
    }
  }
  context.textAlign = "start";
  context.textBaseline = "alphabetic";
}
