/** Half-precision tiles: each number is coloured by a table with one colour for each of the 65,536 bit patterns. */
import { paletteColour } from "../parts/colour.js";
import { clamp } from "../parts/numbers.js";

/** The number that each pattern of 16 bits stands for. */
export const FLOAT16 = Float32Array.from({ length: 65536 }, (_, bits) => {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return (
    sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024))
  );
});

/**
 * @typedef {{low: number, high: number, scale: string}} ColourRange  limits in powers of two; scale "root", "log" or "linear"
 */

/**
 * Return the function that maps log2 of a number to its position between the limits, 0 to 1 inside of them.
 * @param {ColourRange} range
 * @returns {(log2: number) => number}
 */
export function positionIn({ low, high, scale }) {
  if (scale === "log") return (log2) => (log2 - low) / (high - low);
  const power = scale === "root" ? 0.5 : 1;
  const [a, b] = [2 ** (low * power), 2 ** (high * power)];
  return (log2) => (2 ** (log2 * power) - a) / (b - a);
}

/**
 * Return a colour, as ABGR bytes, for every bit pattern. Masked (-inf) and outside (NaN) are transparent.
 * @param {ColourRange & {palette: Colour[]}} range
 * @param {number} offset  added to log2 of every number
 */
export function colourTable(range, offset) {
  const ramp = Array.from({ length: 1024 }, (_, at) => {
    const [r, g, b] = paletteColour(range.palette, at / 1023);
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
  const position = positionIn(range);
  const colours = new Uint32Array(65536);
  for (let bits = 0; bits < 65536; bits += 1) {
    const log2 = FLOAT16[bits];
    if (Number.isNaN(log2) || log2 === -Infinity) continue;
    colours[bits] = ramp[clamp(Math.round(position(log2 + offset) * 1023), 0, 1023)];
  }
  return colours;
}

/**
 * Paint a tile of bit patterns onto a new canvas.
 * @param {ArrayLike<number>} tile
 * @param {number} size  pixels of a side
 * @param {Uint32Array} colours
 * @param {{column: number, colours: Uint32Array} | null} last  the last column, if its pixels cover fewer keys
 */
export function paintTile(tile, size, colours, last) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const picture = new ImageData(size, size);
  const out = new Uint32Array(picture.data.buffer);
  for (let at = 0; at < out.length; at += 1) out[at] = colours[tile[at]];
  if (last)
    for (let at = last.column; at < out.length; at += size) out[at] = last.colours[tile[at]];
  context2d(canvas).putImageData(picture, 0, 0);
  return canvas;
}

/**
 * Return the 2D context of a canvas, which every browser has.
 * @param {HTMLCanvasElement} canvas
 */
export const context2d = (canvas) =>
  /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
