/** Words first: the tokens of a text as words, or as the pieces that the model reads. */
import { argmax, sum } from "./numbers.js";

/**
 * @typedef {{range: TokenRange, at: (i: number) => number, query: (place: number) => number,
 *   joined: boolean}} Shown what a picker shows, the place of query i in it, and the query of a
 *   place: the last piece of a word
 */

/**
 * Return the words of a text, or its pieces where `pieces` is set or the words are not known.
 * @param {TokenRange} range
 * @param {boolean} pieces
 * @returns {Shown}
 */
export function wordsOrPieces(range, pieces) {
  const { words, names } = range;
  const whole = range.start === 0 && range.tokens.length === range.n;
  if (pieces || !words || !names || !whole)
    return { range, at: (i) => i, query: (place) => place, joined: false };
  return {
    range: { ...range, tokens: names, n: names.length },
    at: (i) => words[i] ?? 0,
    query: (place) => words.lastIndexOf(place),
    joined: names.length < range.tokens.length,
  };
}

/**
 * Return a trace in which the keys of a word are one: its weight and its part of the context are
 * those of its pieces together, its scores those of the piece with the largest weight.
 * @param {Trace} trace
 * @param {TokenRange} keys
 * @returns {Trace & {members?: number[][], weightsOf?: number[][]}}
 */
export function joinKeys(trace, keys) {
  const { words, names } = keys;
  if (!words || !names || trace.rest.keys > 0 || trace.keys.length !== words.length) return trace;
  if (names.length === words.length) return { ...trace, tokens: names };
  const weights = /** @type {number[]} */ (
    trace.steps.find((step) => step.name === "weights")?.numbers
  );
  /** @type {number[][]} */
  const members = names.map(() => []);
  words.forEach((word, at) => members[word].push(at));
  const best = members.map((group) => group[argmax(group.map((at) => weights[at]))]);
  /** @type {<T>(list: T[]) => T[]} */
  const strongest = (list) => best.map((at) => list[at]);
  return {
    ...trace,
    keys: strongest(trace.keys),
    tokens: names,
    key: strongest(trace.key),
    terms: strongest(trace.terms),
    factors: trace.factors && { query: trace.factors.query, key: strongest(trace.factors.key) },
    value:
      trace.value &&
      members.map((group) => meanValue(group, weights, /** @type {number[][]} */ (trace.value))),
    steps: trace.steps.map((step) => ({
      ...step,
      numbers:
        step.name === "weights"
          ? members.map((group) => sum(group.map((at) => weights[at])))
          : strongest(step.numbers),
    })),
    members,
  };
}

/**
 * Return the mean of the values of a word’s pieces, weighted as the query weights them.
 * @type {(group: number[], weights: number[], values: number[][]) => number[]}
 */
function meanValue(group, weights, values) {
  const total = sum(group.map((at) => weights[at]));
  if (!total) return values[group[0]];
  return values[group[0]].map(
    (_, m) => sum(group.map((at) => weights[at] * values[at][m])) / total,
  );
}

const CHUNK = 256; // tokens requested of a long text
const SHORT = 512; // tokens; a text up to here is requested whole

/**
 * Return the parameters of a /tokens request that includes a position of an axis.
 * @param {Attention} attention
 * @param {Axis} axis
 * @param {number} position
 * @returns {{l: number, axis: Axis, start?: number, stop?: number}}
 */
export function tokenRange(attention, axis, position) {
  const n = axis === "q" ? attention.n_q : attention.n_k;
  if (n <= SHORT) return { l: attention.l, axis };
  const start = Math.floor(position / CHUNK) * CHUNK;
  return { l: attention.l, axis, start, stop: Math.min(n, start + CHUNK) };
}
