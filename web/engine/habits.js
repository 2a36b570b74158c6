/** What heads do by habit, as recording.heads() measures it, for examples of a few words. */
import { sum } from "./matrix.js";

/** @typedef {import("./example_run.js").View} View */

const CLEAR = 0.4; // the least share of the weight that names the kind of a head

/** The weight that each key gets from all queries. @type {(view: View, h: number) => number[]} */
export const received = ({ heads }, h) =>
  heads[h].keys.map((_, j) => sum(heads[h].rows.map((row) => row.weights[j])));

/** @type {(weights: number[]) => number} */
export const entropy = (weights) => -sum(weights.map((w) => (w === 0 ? 0 : w * Math.log(w))));

/** @type {(x: number) => number | null} */
const known = (x) => (Number.isFinite(x) ? Number(x.toPrecision(7)) : null);

/**
 * Return the measured habits of a head; what needs token ids, an image or a sound is null.
 * @type {(view: View, h: number) => Record<string, any>}
 */
export function habitsOf(view, h) {
  const { across, n_q, n_k, definition } = view;
  const rows = view.heads[h].rows.map((row, i) => ({
    ...{ ...row, place: i + n_k - n_q, entropy: entropy(row.weights) },
  }));
  const seeing = rows.filter((row) => row.masked.some((x) => x !== -Infinity));
  // queries that have a choice: the first token has none, nor has a weight below zero an entropy
  const counted = seeing.filter((row) => row.entropy >= 0 && (across || row.place > 0));
  /** @type {(each: (row: typeof rows[0]) => number) => number} */
  const mean = (each) => sum(counted.map(each)) / counted.length;
  const all = received(view, h);
  const given = sum(all);
  /** @type {Record<string, number>} */
  const shares = {
    itself: across ? NaN : mean(({ weights, place }) => weights[place] ?? 0),
    previous: across ? NaN : mean(({ weights, place }) => weights[place - 1] ?? 0),
    first: mean(({ weights }) => weights[0]),
    sink: given > 0 ? (n_k > 1 ? Math.max(0, ...all.slice(1)) : 0) / given : NaN,
  };
  const clear = Object.keys(shares).filter((name) => shares[name] >= CLEAR);
  const most = Math.max(...clear.map((name) => shares[name]));
  const softmax = definition.normalize === "softmax";
  const logits = seeing.map((row) => Math.max(...row.masked));
  return {
    ...{ h, kind: clear.find((name) => shares[name] === most) ?? "mixed" },
    ...Object.fromEntries(Object.entries(shares).map(([name, x]) => [name, known(x)])),
    ...{ same: null, induction: null, punctuation: null },
    far: across || !counted.length ? null : 0,
    spread: known(mean((row) => Math.exp(row.entropy))),
    // a text this short is all among its first and last keys
    streaming: across || !softmax ? null : known(mean(({ weights }) => sum(weights))),
    retrieval: null,
    largest_logit: softmax && logits.length ? known(Math.max(...logits)) : null,
    ...{ neighbours: null, patches: null, seconds: null, segments: {} },
  };
}
