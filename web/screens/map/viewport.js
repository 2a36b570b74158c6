/**
 * The visible part of the matrix: its centre in cells, and its zoom. A cell is 2^(z - max_zoom)
 * pixels wide, so that at max_zoom a cell is a pixel. Then where things lie on the canvas.
 */
import { clamp } from "../../parts/numbers.js";
import { tilePicture } from "./draw_tiles.js";
import { tileKey } from "./fetching.js";

export const LARGEST_CELL = 96; // pixels

/**
 * Return how many pixels of the page a cell is wide.
 * @param {View} view
 * @param {MapInfo} info
 */
export const cellSize = (view, info) => 2 ** (view.z - info.max_zoom);

/**
 * Return the view that shows the whole matrix.
 * @param {MapInfo} info
 * @param {Box} box
 * @returns {View}
 */
export const wholeMatrix = (info, box) => {
  const size = Math.min(box.width / info.n_k, box.height / info.n_q, LARGEST_CELL);
  return { x: info.n_k / 2, y: info.n_q / 2, z: info.max_zoom + Math.log2(size) };
};

/**
 * Return the view with its centre inside the matrix, and its zoom between half of the whole and the
 * largest cell.
 * @param {View} view
 * @param {MapInfo} info
 * @param {Box} box
 * @returns {View}
 */
export const clampView = (view, info, box) => ({
  x: clamp(view.x, 0, info.n_k),
  y: clamp(view.y, 0, info.n_q),
  z: Math.min(
    info.max_zoom + Math.log2(LARGEST_CELL),
    Math.max(wholeMatrix(info, box).z - 1, view.z),
  ),
});

/**
 * Return the cell, as [key, query] in fractions, at a pixel of the canvas.
 * @param {View} view
 * @param {MapInfo} info
 * @param {Box} box
 * @param {number} left
 * @param {number} top
 */
export const toCell = (view, info, box, left, top) => {
  const size = cellSize(view, info);
  return [
    view.x + (left - box.left - box.width / 2) / size,
    view.y + (top - box.top - box.height / 2) / size,
  ];
};

/**
 * Return the pixel of the canvas, as [left, top], of a key x and a query y.
 * @param {View} view
 * @param {MapInfo} info
 * @param {Box} box
 * @param {number} x
 * @param {number} y
 */
export const toPixel = (view, info, box, x, y) => {
  const size = cellSize(view, info);
  return [
    box.left + box.width / 2 + (x - view.x) * size,
    box.top + box.height / 2 + (y - view.y) * size,
  ];
};

/**
 * Return the view zoomed by `levels` doublings, with the cell at a pixel of the canvas kept in
 * place.
 * @param {View} view
 * @param {MapInfo} info
 * @param {Box} box
 * @param {number} levels
 * @param {number} left
 * @param {number} top
 */
export const zoomAt = (view, info, box, levels, left, top) => {
  const [x, y] = toCell(view, info, box, left, top);
  const { z } = clampView({ ...view, z: view.z + levels }, info, box);
  const size = 2 ** (z - info.max_zoom);
  const centre = {
    x: x - (left - box.left - box.width / 2) / size,
    y: y - (top - box.top - box.height / 2) / size,
    z,
  };
  return clampView(centre, info, box);
};

/**
 * Return the level of tiles whose pixels are about as large as the screen's, and how many cells
 * wide such a pixel is.
 * @param {View} view
 * @param {MapInfo} info
 * @param {number} dense  device pixels per pixel of the page
 */
export const tileLevel = (view, info, dense) => {
  const z = clamp(Math.ceil(view.z + Math.log2(dense) - 0.8), 0, info.max_zoom);
  return { z, bin: 2 ** (info.max_zoom - z) };
};

/**
 * Return the corners of the visible part in cells: [[left, top], [right, bottom]].
 * @param {{view: View, info: MapInfo, box: Box}} scene
 */
export const visibleCorners = ({ view, info, box }) => [
  toCell(view, info, box, box.left, box.top),
  toCell(view, info, box, box.left + box.width, box.top + box.height),
];

/**
 * Return the range of visible cells: queries i0 to i1 and keys j0 to j1.
 * @param {{view: View, info: MapInfo, box: Box}} scene
 */
export function visibleCells(scene) {
  const [[x0, y0], [x1, y1]] = visibleCorners(scene);
  const { n_q, n_k } = scene.info;
  return {
    j0: Math.max(0, Math.floor(x0)),
    j1: Math.min(n_k, Math.ceil(x1)),
    i0: Math.max(0, Math.floor(y0)),
    i1: Math.min(n_q, Math.ceil(y1)),
  };
}

/**
 * Return the visible tiles of a level, those nearest to the centre first.
 * @param {View} view
 * @param {MapInfo} info
 * @param {Box} box
 * @param {number} z
 * @returns {TilePlace[]}
 */
export function visibleTiles(view, info, box, z) {
  const cells = info.tile * 2 ** (info.max_zoom - z);
  const [[x0, y0], [x1, y1]] = visibleCorners({ view, info, box });
  /** @type {(from: number, to: number, n: number) => number[]} */
  const range = (from, to, n) => [
    Math.max(0, Math.floor(from / cells)),
    Math.min(Math.ceil(n / cells) - 1, Math.floor(to / cells)),
  ];
  const [[left, right], [top, bottom]] = [range(x0, x1, info.n_k), range(y0, y1, info.n_q)];
  const found = [];
  for (let y = top; y <= bottom; y += 1)
    for (let x = left; x <= right; x += 1) found.push({ z, x, y });
  /** @type {(tile: TilePlace) => number} */
  const distance = (tile) =>
    Math.hypot((tile.x + 0.5) * cells - view.x, (tile.y + 0.5) * cells - view.y);
  return found.sort((a, b) => distance(a) - distance(b));
}

// Sizes on the map's canvas: where the matrix, its labels and its tracks are.

// pixels of a cell from which on its tokens are written beside the matrix
export const LABELLED = 12;
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
 * Return the view that shows the whole matrix on a canvas, with room for tokens if cells are large
 * enough for them.
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
 * Return the edges of the visible matrix: those of its box, or closer where the matrix is smaller
 * than the box.
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

// The overview: the whole matrix in a corner of the map, with a frame around the visible part.

/**
 * Return where on the canvas the overview is, or null while more than 60 % of the matrix is
 * visible.
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
 * Draw the whole matrix in a corner, with a frame around the visible part.
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
  const left = across(x0);
  const top = down(y0);
  const width = Math.max(5, across(x1) - left);
  const height = Math.max(5, down(y1) - top);
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
