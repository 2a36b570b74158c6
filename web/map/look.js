/** How the numbers of a tile are read: which of them, against what, and in which colours. */
import { PALETTES } from "../parts/colour.js";
import { table } from "./half.js";

/** What can be shown, by what the server sends for it. `mean` and `lift` are `share`, shifted: they ask for nothing. */
export const AGGREGATES = {
  share: { from: "share", means: "what share of these queries’ attention falls on these keys" },
  max: { from: "max", means: "the largest weight in each pixel" },
  mean: { from: "share", means: "the mean weight in each pixel" },
  lift: { from: "share", means: "how many times what an even look at all keys would give" },
};

/** In powers of two: by how much a number of a pixel that stands for so many keys is shifted. */
export const shift = (agg, keys, info) => ({ mean: -Math.log2(keys), lift: Math.log2(info.n_k / keys) }[agg] ?? 0);

/** Limits that follow the zoom, not the numbers: about an even look, so that two heads can be compared. */
export function usual(agg, bin, info) {
  const even = Math.log2(Math.min(1, bin / info.n_k));
  if (agg === "lift") return [-5, 6];
  if (agg === "max") return [Math.round(-Math.log2(info.n_k) - 4), 0];
  if (agg === "mean") return [Math.round(-Math.log2(info.n_k) - 5), Math.min(0, Math.round(-Math.log2(info.n_k) + 6))];
  return [Math.round(even - 5), Math.min(0, Math.round(even + 6))];
}

export function limits(state, bin, info) {
  const given = state.lim?.split(",").map(Number);
  return given?.length === 2 && given.every(Number.isFinite) && given[0] < given[1] ? given : usual(state.agg, bin, info);
}

/** Colours for tiles of one level, made once. */
export class Look {
  constructor() {
    this.made = new Map();
  }

  of(state, bin, info, keys = bin) {
    const [low, high] = limits(state, bin, info);
    const name = [state.palette, state.scale, state.agg, low, high, keys].join();
    if (!this.made.has(name)) {
      if (this.made.size > 24) this.made.clear();
      const how = { palette: PALETTES[state.palette] ?? PALETTES.viridis, low, high, scale: state.scale };
      this.made.set(name, { name, colours: table(how, shift(state.agg, keys, info)) });
    }
    return this.made.get(name);
  }
}
