/**
 * Numbers as text: four digits or all that are true, a true minus sign, infinity as a symbol. And
 * sums over arrays.
 */

/**
 * Return a number of the API's JSON, where infinities and NaN are strings; null is NaN.
 * @param {JsonNumber} json
 * @returns {number}
 */
export const toNumber = (json) =>
  typeof json === "string" ? ({ "-inf": -Infinity, inf: Infinity }[json] ?? NaN) : (json ?? NaN);

/**
 * Return the weights of a trace's query.
 * @param {Trace} trace
 */
export const traceWeights = (trace) =>
  (trace.steps.find((step) => step.name === "weights")?.numbers ?? []).map(toNumber);

/** Return a text with minus signs instead of hyphens, as wide as a plus. @param {string} text */
const minus = (text) => text.replace(/-/g, "−");

/**
 * Return a number with four significant digits: 0.3127, −1.204, 1.902e−7.
 * @param {JsonNumber} json
 * @param {number} [digits]
 */
export function short(json, digits = 4) {
  const x = toNumber(json);
  if (Number.isNaN(x)) return "—";
  if (!Number.isFinite(x)) return x < 0 ? "−∞" : "∞";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size < 1e-4 || size >= 1e6) return minus(x.toExponential(digits - 1));
  return minus(x.toPrecision(digits));
}

/** Significant digits that are true: models compute in float32. */
const TRUE_DIGITS = 7;

/**
 * Return a number with the digits that are true, without zeros at the end; a whole number with all
 * of its digits.
 * @param {JsonNumber} json
 */
export function full(json) {
  const x = toNumber(json);
  if (!Number.isFinite(x)) return short(x);
  return minus(String(Number.isInteger(x) ? x : Number(x.toPrecision(TRUE_DIGITS))));
}

/** The smallest share that is written out, in percent: beyond, more zeros than anybody counts. */
const LEAST_PERCENT = 1e-6;
/** What a share in float32 may lack to one: rounding. */
const ROUNDING = 1e-6;

/**
 * Return a share of one as a percentage: 31.3 %, 0.04 %, 0.00051 %; of a weight that is no share,
 * −12.5 % or 140.2 %.
 * @param {JsonNumber} json
 * @returns {string}
 */
export function percent(json) {
  const share = toNumber(json);
  if (share < 0) return `−${percent(-share)}`;
  const x = share * 100;
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "—" : "∞";
  if (x === 0) return "0 %";
  if (x < LEAST_PERCENT) return "< 0.000001 %";
  if (Math.abs(share - 1) < ROUNDING) return "100 %";
  // 99.97 % is not all, and 99.9994 % neither.
  if (x >= 99.95 && x < 100) return x < 99.995 ? `${x.toFixed(2)} %` : "> 99.99 %";
  return `${Number(x >= 10 ? x.toFixed(1) : x.toPrecision(2))} %`;
}

/**
 * Return a weight among numbers that it is computed from: four digits, and a percentage where these
 * would be behind many zeros: 0.3127, 0.00051 %.
 * @param {JsonNumber} json
 */
export function weight(json) {
  const size = Math.abs(toNumber(json));
  return size > 0 && size < 1e-4 ? percent(json) : short(json);
}

/**
 * Return an integer with thousands separated by commas.
 * @param {number} n
 */
export const count = (n) => n.toLocaleString("en");

/**
 * Return a number with its noun: 1 text, 1,200 texts.
 * @param {number} n
 * @param {string} noun
 */
export const counted = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/**
 * Return n within lowest and highest.
 * @param {number} n
 * @param {number} lowest
 * @param {number} highest
 */
export const clamp = (n, lowest, highest) => Math.max(lowest, Math.min(highest, n));

/** @param {number[]} numbers */
export const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

/**
 * @param {number[]} a
 * @param {number[]} b
 */
export const dot = (a, b) => a.reduce((total, x, m) => total + x * b[m], 0);

/** @param {number[]} a */
export const norm = (a) => Math.sqrt(dot(a, a));

/**
 * Return the cosine of two vectors; 0 where one of them is zero.
 * @param {number[]} a
 * @param {number[]} b
 */
export const cosine = (a, b) => dot(a, b) / (norm(a) * norm(b) || 1);

/**
 * Return the largest absolute value, of the finite numbers alone.
 * @param {number[]} numbers
 */
export const largest = (numbers) =>
  numbers.reduce((best, x) => (Number.isFinite(x) ? Math.max(best, Math.abs(x)) : best), 0);

/**
 * Return the index of the largest number, the first of equals.
 * @param {number[]} numbers
 */
export const argmax = (numbers) =>
  numbers.reduce((best, x, at) => (x > numbers[best] ? at : best), 0);

/**
 * Return the right end of the bars of weights: 1, or less where many keys share the weight; the
 * table prints it.
 * @param {number[]} weights
 */
export const weightScale = (weights) => {
  const top = Math.max(...weights);
  return weights.length <= 64 || top > 0.5
    ? 1
    : ([0.01, 0.05, 0.1, 0.5].find((end) => end >= top) ?? 1);
};
