/**
 * Where one looks: the key and the query in the middle, and how close. All in float64, in cells of the matrix; at zoom z a cell
 * is 2^(z - max_zoom) pixels wide, so that at max_zoom a cell is a pixel.
 *
 * @typedef {{x: number, y: number, z: number}} View
 * @typedef {{left: number, top: number, width: number, height: number}} Box  where on the canvas the matrix is drawn
 */

export const CLOSEST = 96; // pixels for a cell

export const pixels = (view, info) => 2 ** (view.z - info.max_zoom);

export const fitting = (info, box) => {
  const each = Math.min(box.width / info.n_k, box.height / info.n_q, CLOSEST);
  return { x: info.n_k / 2, y: info.n_q / 2, z: info.max_zoom + Math.log2(each) };
};

/** Not farther than half the size at which all of it is seen, and with the middle of the view within the matrix. */
export const held = (view, info, box) => ({
  x: Math.min(info.n_k, Math.max(0, view.x)),
  y: Math.min(info.n_q, Math.max(0, view.y)),
  z: Math.min(info.max_zoom + Math.log2(CLOSEST), Math.max(fitting(info, box).z - 1, view.z)),
});

export const toCell = (view, info, box, left, top) => {
  const each = pixels(view, info);
  return [view.x + (left - box.left - box.width / 2) / each, view.y + (top - box.top - box.height / 2) / each];
};

export const toPixel = (view, info, box, x, y) => {
  const each = pixels(view, info);
  return [box.left + box.width / 2 + (x - view.x) * each, box.top + box.height / 2 + (y - view.y) * each];
};

/** Closer by so many doublings; what is at that pixel stays there. */
export const zoomed = (view, info, box, by, left, top) => {
  const [x, y] = toCell(view, info, box, left, top);
  const z = held({ ...view, z: view.z + by }, info, box).z;
  const each = 2 ** (z - info.max_zoom);
  return held({ x: x - (left - box.left - box.width / 2) / each, y: y - (top - box.top - box.height / 2) / each, z }, info, box);
};

/** The level whose pixels are about the screen's, and how many cells wide they are. */
export const level = (view, info, dense) => {
  const z = Math.max(0, Math.min(info.max_zoom, Math.ceil(view.z + Math.log2(dense) - 0.8)));
  return { z, bin: 2 ** (info.max_zoom - z) };
};

/** The tiles of that level which are seen, the middle ones first. */
export function seen(view, info, box, z) {
  const cells = info.tile * 2 ** (info.max_zoom - z);
  const [x0, y0] = toCell(view, info, box, box.left, box.top);
  const [x1, y1] = toCell(view, info, box, box.left + box.width, box.top + box.height);
  const range = (from, to, n) => [Math.max(0, Math.floor(from / cells)), Math.min(Math.ceil(n / cells) - 1, Math.floor(to / cells))];
  const [[left, right], [top, bottom]] = [range(x0, x1, info.n_k), range(y0, y1, info.n_q)];
  const found = [];
  for (let y = top; y <= bottom; y += 1) for (let x = left; x <= right; x += 1) found.push({ z, x, y });
  const far = (tile) => Math.hypot((tile.x + 0.5) * cells - view.x, (tile.y + 0.5) * cells - view.y);
  return found.sort((a, b) => far(a) - far(b));
}
