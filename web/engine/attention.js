/**
 * Attention in float64, every step kept: what `ts.trace` computes, for the definitions that the
 * page offers.
 */
import { Failure } from "../transport/http.js";
import { dot, matmul, sum, weigh, zeros } from "./matrix.js";

/** @typedef {import("./matrix.js").Matrix} Matrix */

/**
 * A definition. `scale` null is 1/√d_k; a window sees the positions less than so many away, and
 * `hidden` are keys that no query sees.
 * @typedef {{kind: "dot"} | {kind: "general", W: Matrix} | {kind: "additive", W_q: Matrix, W_k:
 *   Matrix, v: number[]}} Score
 * @typedef {{score: Score, scale: number | null, causal: boolean, window?: number, hidden:
 *   number[], normalize: "softmax" | "by_sum"}} Definition
 */

/**
 * One query of one head, every step. Summed over the last axis, `terms` are the scores; they are the
 * products of the `factors`, which are null where the score is no product.
 * @typedef {{terms: Matrix, factors: {query: number[], key: Matrix} | null, scores: number[],
 *   scaled: number[], masked: number[], weights: number[], context: number[]}} Row
 */

/** The sentence of a normaliser that divides by a sum of zero. */
export const ZERO_SUM =
  "the scores of a query sum to zero, so they cannot be divided by their sum; choose softmax, or " +
  "change the numbers";

/** @type {(definition: Definition, d_k: number) => number} */
export const scaleFor = ({ scale }, d_k) => scale ?? 1 / Math.sqrt(d_k || 1);

/**
 * Return the factors and the terms of one query's scores.
 * @type {(score: Score, query: number[], keys: Matrix) => Pick<Row, "terms" | "factors">}
 */
function products(score, query, keys) {
  if (score.kind === "additive") {
    const asked = matmul([query], score.W_q)[0];
    const terms = matmul(keys, score.W_k).map((row) =>
      row.map((x, m) => Math.tanh(asked[m] + x) * score.v[m]),
    );
    return { terms, factors: null };
  }
  const own = score.kind === "general" ? matmul([query], score.W)[0] : query;
  const terms = keys.map((key) => key.map((x, m) => own[m] * x));
  return { terms, factors: { query: own, key: keys } };
}

/**
 * Return whether a query sees a key; the last query has the position of the last key.
 * @type {(definition: Definition, i: number, j: number, size: [number, number]) => boolean}
 */
export function sees({ causal, window = Infinity, hidden }, i, j, [n_q, n_k]) {
  const position = i + n_k - n_q;
  if (causal && j > position) return false;
  return Math.abs(position - j) < window && !hidden.includes(j);
}

/** ln Σ exp(score); -∞ of nothing visible. @type {(masked: number[]) => number} */
export function logSumExp(masked) {
  const most = Math.max(...masked);
  return most === -Infinity ? most : most + Math.log(sum(masked.map((x) => Math.exp(x - most))));
}

/** @type {Record<Definition["normalize"], (masked: number[]) => number[]>} */
const NORMALIZERS = {
  softmax(masked) {
    const most = Math.max(...masked);
    // a query that sees nothing has weights of zero, not NaN
    if (most === -Infinity) return zeros(masked.length);
    const powers = masked.map((x) => Math.exp(x - most));
    const total = sum(powers);
    return powers.map((x) => x / total);
  },
  by_sum(masked) {
    const seen = masked.map((x) => (x === -Infinity ? 0 : x));
    const total = sum(seen);
    if (masked.every((x) => x === -Infinity)) return seen;
    // a sum below the rounding error of its terms counts as zero
    if (Math.abs(total) <= Number.EPSILON * sum(seen.map(Math.abs)))
      throw new Failure(ZERO_SUM, "zero-sum");
    return seen.map((x) => x / total);
  },
};

/**
 * Return every step of one query: score, scale, mask, normalise, weigh the values.
 * @type {(definition: Definition, i: number, queries: Matrix, keys: Matrix, values: Matrix) => Row}
 */
export function attendRow(definition, i, queries, keys, values) {
  const { terms, factors } = products(definition.score, queries[i], keys);
  const scale = scaleFor(definition, keys[0].length);
  const scores = terms.map(sum);
  const scaled = scores.map((x) => x * scale);
  const masked = scaled.map((x, j) =>
    sees(definition, i, j, [queries.length, keys.length]) ? x : -Infinity,
  );
  const weights = NORMALIZERS[definition.normalize](masked);
  return { terms, factors, scores, scaled, masked, weights, context: weigh(weights, values) };
}

/** Return whether a mask hides anything. @type {(definition: Definition) => boolean} */
const masks = ({ causal, window, hidden }) => causal || window !== undefined || hidden.length > 0;

/** @type {Record<Score["kind"], string>} */
export const SCORE_FORMULAS = {
  dot: "q·k",
  general: "q·W·k",
  additive: "v·tanh(W_q q + W_k k)",
};

/** @type {(digits: string) => string} */
const withoutZeros = (digits) => (digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits);

/**
 * Return a number as Python's format "g" writes it: so many digits, without zeros at the end.
 * @type {(x: number, precision?: number) => string}
 */
export function general(x, precision = 6) {
  const [digits, power] = x.toExponential(precision - 1).split("e");
  const exponent = Number(power);
  if (exponent >= -4 && exponent < precision)
    return withoutZeros(x.toFixed(precision - 1 - exponent));
  const size = String(Math.abs(exponent)).padStart(2, "0");
  return `${withoutZeros(digits)}e${exponent < 0 ? "-" : "+"}${size}`;
}

/** The scale as a factor of the formula. @type {(scale: number | null, d_k: number) => string} */
function scaleFactor(scale, d_k) {
  if (scale === null) return ` / √${d_k}`;
  if (scale === 1) return "";
  // 1/√64 is printed as / √64, which tells the width of a head
  const square = scale > 0 ? (1 / scale) ** 2 : 0;
  const isRoot = square >= 1 && Math.abs(square - Math.round(square)) < 1e-6 * square;
  return isRoot ? ` / √${Math.round(square)}` : ` · ${general(scale)}`;
}

/** The definition as a formula. @type {(definition: Definition, d_k: number) => string} */
export function formula(definition, d_k) {
  const scaled = SCORE_FORMULAS[definition.score.kind] + scaleFactor(definition.scale, d_k);
  return `${definition.normalize}(${masks(definition) ? `mask(${scaled})` : scaled}) v`;
}

/** The mask as Python prints it. @type {(definition: Definition, n_k: number) => string} */
export const maskName = ({ causal, window, hidden }, n_k) =>
  [
    causal && "causal",
    window !== undefined && `window(${window})`,
    hidden.length && `padding(keep=1x${n_k})`,
  ]
    .filter(Boolean)
    .join(" & ") || "everyone";

/**
 * Return the formula of each step from scores to weights that the definition takes, in order.
 * @type {(definition: Definition, d_k: number, n_k: number) => Record<string, string>}
 */
export function stepFormulas(definition, d_k, n_k) {
  const { scale, score, normalize } = definition;
  /** @type {Record<string, string>} */
  const taken = { scores: SCORE_FORMULAS[score.kind] };
  const last = () => Object.keys(taken).at(-1);
  if (scaleFor(definition, d_k) !== 1)
    taken.scaled = `${last()} ${scale === null ? `/ √${d_k}` : `· ${general(scale)}`}`;
  if (masks(definition)) taken.masked = `${last()} where ${maskName(definition, n_k)}, else -inf`;
  taken.weights = `${normalize}(${last()})`;
  return taken;
}

/** Return the variance of all numbers. @type {(numbers: number[]) => number} */
export function variance(numbers) {
  const mean = sum(numbers) / numbers.length;
  return sum(numbers.map((x) => (x - mean) ** 2)) / numbers.length;
}

/** Return the cosine of two vectors' angle. @type {(a: number[], b: number[]) => number} */
export function cosine(a, b) {
  // as torch: a length below 1e-8 counts as 1e-8
  const lengths = [a, b].map((one) => Math.max(Math.hypot(...one), 1e-8));
  return dot(a, b) / (lengths[0] * lengths[1]);
}
