/**
 * Random scores, for "why √d": the same numbers as in tasks/explaining/tables.py, from the generator
 * that torch has, a Mersenne Twister with the seed 7, and Box and Muller's method.
 */
import { sum } from "./matrix.js";
import { Params } from "./params.js";

const MOST_FEATURES = 512;
const QUERIES = 512;
const KEYS = 8;
const SEED = 7;
const EDGE = 48.5;
const BINS = 97;
const SHOWN_QUERY = 5;

/** Return a generator of 32 random bits (Matsumoto and Nishimura 1998). @param {number} seed */
function mersenneTwister(seed) {
  const [n, m] = [624, 397];
  const state = new Uint32Array(n);
  state[0] = seed;
  for (let i = 1; i < n; i += 1)
    state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
  let at = n;
  return () => {
    if (at === n) {
      for (let i = 0; i < n; i += 1) {
        const both = (state[i] & 0x80000000) | (state[(i + 1) % n] & 0x7fffffff);
        state[i] = state[(i + m) % n] ^ (both >>> 1) ^ (both & 1 ? 0x9908b0df : 0);
      }
      at = 0;
    }
    let y = state[at];
    at += 1;
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  };
}

/**
 * Return normally distributed numbers: of 16 uniform ones, the first half are lengths and the second
 * half angles.
 * @type {(size: number, bits: () => number) => Float64Array}
 */
function normal(size, bits) {
  const found = new Float64Array(size);
  for (let at = 0; at < size; at += 1) {
    const high = bits() & 0x1fffff;
    found[at] = (high * 2 ** 32 + bits()) * 2 ** -53;
  }
  for (let start = 0; start < size; start += 16)
    for (let at = start; at < start + 8; at += 1) {
      const length = Math.sqrt(-2 * Math.log(1 - found[at]));
      const angle = 2 * Math.PI * found[at + 8];
      found[at] = length * Math.cos(angle);
      found[at + 8] = length * Math.sin(angle);
    }
  return found;
}

/** @type {{queries: Float64Array, keys: Float64Array} | null} */
let drawn = null;

/** Return the scores of each query for d features. @type {(d: number) => number[][]} */
function randomScores(d) {
  if (!drawn) {
    const bits = mersenneTwister(SEED);
    const queries = normal(QUERIES * MOST_FEATURES, bits);
    drawn = { queries, keys: normal(QUERIES * KEYS * MOST_FEATURES, bits) };
  }
  const { queries, keys } = drawn;
  return Array.from({ length: QUERIES }, (_, i) =>
    Array.from({ length: KEYS }, (_, j) => {
      const [from, other] = [i * MOST_FEATURES, (i * KEYS + j) * MOST_FEATURES];
      let score = 0;
      for (let m = 0; m < d; m += 1) score += queries[from + m] * keys[other + m];
      return score;
    }),
  );
}

/** @type {(scores: number[]) => number[]} */
function softmax(scores) {
  const most = Math.max(...scores);
  const powers = scores.map((x) => Math.exp(x - most));
  const total = sum(powers);
  return powers.map((x) => x / total);
}

/** @type {(scores: number[][]) => any} */
function spread(scores) {
  const flat = scores.flat();
  const mean = sum(flat) / flat.length;
  const weights = scores.map(softmax);
  const histogram = new Array(BINS).fill(0);
  // what lies beyond the edge is counted in the outermost bins
  for (const x of flat)
    histogram[Math.min(BINS - 1, Math.max(0, Math.floor(((x + EDGE) * BINS) / (2 * EDGE))))] += 1;
  return {
    variance: sum(flat.map((x) => (x - mean) ** 2)) / flat.length,
    largest: sum(weights.map((row) => Math.max(...row))) / QUERIES,
    gradient: sum(weights.map((row) => sum(row.map((w) => w * (1 - w))))) / QUERIES,
    histogram,
    scores: scores[SHOWN_QUERY],
    weights: weights[SHOWN_QUERY],
  };
}

/** Answer the spread of random scores for d features. @type {(query?: Query) => any} */
export function varianceAnswer(query) {
  // vectors without features have no scores: 0 is taken for 1
  const d = new Params(query).index("d", MOST_FEATURES + 1, "dimension", 64) || 1;
  const scores = randomScores(d);
  const divided = scores.map((row) => row.map((x) => x / Math.sqrt(d)));
  return { d, most: MOST_FEATURES, edge: EDGE, dot: spread(scores), divided: spread(divided) };
}
