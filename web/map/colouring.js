/** How a tile's numbers are shown: which aggregate, between which limits, in which colours. */
import { PALETTES, WEIGHTS } from "../parts/colour.js";
import { colourTable } from "./float16.js";

/**
 * What a pixel can show, and the aggregate that the server sends for it. `mean` and `lift` are `share` times a
 * constant, so that they need no request.
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
 * Return default limits in powers of two, around uniform attention. They follow the zoom and not the numbers, so that
 * two heads can be compared.
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
 * @param {State} state
 * @param {number} bin
 * @param {MapInfo} info
 */
export function colourLimits(state, bin, info) {
  const none = state.scale === "root" && state.how !== "lift" ? [ZERO, 0] : null;
  const chosen = state.lim?.split(",").map(Number);
  const valid = chosen?.length === 2 && chosen.every(Number.isFinite) && chosen[0] < chosen[1];
  return chosen && valid ? chosen : (none ?? defaultLimits(state.how, bin, info));
}

export const ZERO = -40; // a power of two that counts as no weight
const SINGLE = 256; // tokens; up to here, every weight has its own pixel

/**
 * Return the state with its scale and its palette: as on the other screens, unless the reader has chosen others. On a
 * longer text, where nearly all weights are tiny, the scale is logarithmic.
 * @param {State} state
 * @param {MapInfo} info
 * @param {Theme} theme
 * @returns {State}
 */
export const withColours = (state, info, theme) => ({
  ...state,
  scale:
    state.scale ??
    (Math.max(info.n_q, info.n_k) <= SINGLE && state.how !== "lift" ? "root" : "log"),
  palette: state.palette === "weights" ? `weights-${theme}` : state.palette,
});

/** @type {Record<string, Colour[]>} */
const ALL_PALETTES = { ...PALETTES, "weights-light": WEIGHTS.light, "weights-dark": WEIGHTS.dark };

/** @param {State} state */
export const chosenPalette = (state) => ALL_PALETTES[state.palette] ?? WEIGHTS.light;

/** Colour tables, each made once; at most 25 are kept. */
export class ColourTables {
  constructor() {
    /** @type {Map<string, {name: string, colours: Uint32Array}>} */
    this.tables = new Map();
  }

  /**
   * Return the table for pixels that cover `keys` keys, on a level with `bin` keys in a full pixel.
   * @param {State} state
   * @param {number} bin
   * @param {MapInfo} info
   * @param {number} [keys]
   */
  get(state, bin, info, keys = bin) {
    const [low, high] = colourLimits(state, bin, info);
    const name = [state.palette, state.scale, state.how, low, high, keys].join();
    let table = this.tables.get(name);
    if (!table) {
      if (this.tables.size > 24) this.tables.clear();
      const range = { palette: chosenPalette(state), low, high, scale: state.scale ?? "log" };
      table = { name, colours: colourTable(range, log2Shift(state.how, keys, info)) };
      this.tables.set(name, table);
    }
    return table;
  }
}
