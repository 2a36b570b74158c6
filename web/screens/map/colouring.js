/**
 * The colours of a tile. Its numbers are half-precision: a table with one colour for each of the
 * 65,536 bit patterns colours them without decoding.
 */
import { PALETTES, WEIGHTS, paletteColour } from "../../parts/colour.js";
import { clamp } from "../../parts/numbers.js";

/** The number that each pattern of 16 bits stands for. */
export const FLOAT16 = Float32Array.from({ length: 65536 }, (_, bits) => {
  const sign = bits >> 15 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return (
    sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024))
  );
});

/**
 * @typedef {{low: number, high: number, scale: string}} ColourRange  limits in powers of two; scale
 *   "root", "log" or "linear"
 */

/**
 * Return the function that maps log2 of a number to its position between the limits, 0 to 1 inside
 * of them.
 * @param {ColourRange} range
 * @returns {(log2: number) => number}
 */
export function positionIn({ low, high, scale }) {
  if (scale === "log") return (log2) => (log2 - low) / (high - low);
  const power = scale === "root" ? 0.5 : 1;
  const a = 2 ** (low * power);
  const b = 2 ** (high * power);
  return (log2) => (2 ** (log2 * power) - a) / (b - a);
}

/**
 * Return a colour, as ABGR bytes, for every bit pattern. Masked (-inf) and outside (NaN) are
 * transparent.
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
 * @param {{column: number, colours: Uint32Array} | null} last  the last column, if its pixels cover
 *   fewer keys
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

// How a tile's numbers are shown: which aggregate, between which limits, in which colours.

/**
 * What a pixel can show, and the aggregate that the server sends for it. `mean` and `lift` are
 * `share` times a constant, so that they need no request.
 * @type {Record<string, {from: string, means: string}>}
 */
export const AGGREGATES = {
  share: { from: "share", means: "the share of these queries’ attention that falls on these keys" },
  max: { from: "max", means: "the largest weight in each pixel" },
  mean: { from: "share", means: "the mean weight in each pixel" },
  lift: { from: "share", means: "the share, relative to uniform attention over all keys" },
};

/**
 * Return what is added to log2 of the sent number of a pixel that covers `keys` keys.
 * @param {string} how
 * @param {number} keys
 * @param {MapInfo} info
 */
export const log2Shift = (how, keys, info) =>
  how === "mean" ? -Math.log2(keys) : how === "lift" ? Math.log2(info.n_k / keys) : 0;

/**
 * Return default limits in powers of two, around uniform attention. They follow the zoom and not
 * the numbers, so that two heads can be compared.
 * @param {string} how
 * @param {number} bin  keys in a pixel
 * @param {MapInfo} info
 */
export function defaultLimits(how, bin, info) {
  const uniform = -Math.log2(info.n_k);
  if (how === "lift") return [-5, 6];
  if (how === "max") return [Math.round(uniform - 4), 0];
  const middle = how === "mean" ? uniform : Math.log2(Math.min(1, bin / info.n_k));
  return [Math.round(middle - 5), Math.min(0, Math.round(middle + 6))];
}

/**
 * Return the limits that the state holds as "low,high", or the default ones.
 * @param {State["map"]} chosen
 * @param {number} bin
 * @param {MapInfo} info
 */
export function colourLimits(chosen, bin, info) {
  const none = chosen.scale === "root" && chosen.aggregate !== "lift" ? [ZERO, 0] : null;
  const given = chosen.limits?.split(",").map(Number);
  const valid = given?.length === 2 && given.every(Number.isFinite) && given[0] < given[1];
  return given && valid ? given : (none ?? defaultLimits(chosen.aggregate, bin, info));
}

export const ZERO = -40; // a power of two that counts as no weight
const SINGLE = 256; // tokens; up to here, every weight has its own pixel

/**
 * Return the settings of the map with their scale and its palette: as on the other screens, unless
 * the reader has chosen others. On a longer text, where nearly all weights are tiny, the scale is
 * logarithmic.
 * @param {State["map"]} chosen
 * @param {MapInfo} info
 * @param {Theme} theme
 * @returns {State["map"]}
 */
export const withColours = (chosen, info, theme) => ({
  ...chosen,
  scale:
    chosen.scale ??
    (Math.max(info.n_q, info.n_k) <= SINGLE && chosen.aggregate !== "lift" ? "root" : "log"),
  palette: chosen.palette === "weights" ? `weights-${theme}` : chosen.palette,
});

/** @type {Record<string, Colour[]>} */
const ALL_PALETTES = { ...PALETTES, "weights-light": WEIGHTS.light, "weights-dark": WEIGHTS.dark };

/** Return the colours of the chosen palette. @param {State["map"]} chosen */
export const chosenPalette = (chosen) => ALL_PALETTES[chosen.palette] ?? WEIGHTS.light;

/** Colour tables, each made once; at most 25 are kept. */
export class ColourTables {
  constructor() {
    /** @type {Map<string, {name: string, colours: Uint32Array}>} */
    this.tables = new Map();
  }

  /**
   * Return the table for pixels that cover `keys` keys, on a level with `bin` keys in a full pixel.
   * @param {State["map"]} chosen
   * @param {number} bin
   * @param {MapInfo} info
   * @param {number} [keys]
   */
  get(chosen, bin, info, keys = bin) {
    const [low, high] = colourLimits(chosen, bin, info);
    const name = [chosen.palette, chosen.scale, chosen.aggregate, low, high, keys].join();
    let table = this.tables.get(name);
    if (!table) {
      if (this.tables.size > 24) this.tables.clear();
      const range = { palette: chosenPalette(chosen), low, high, scale: chosen.scale ?? "log" };
      table = { name, colours: colourTable(range, log2Shift(chosen.aggregate, keys, info)) };
      this.tables.set(name, table);
    }
    return table;
  }
}
