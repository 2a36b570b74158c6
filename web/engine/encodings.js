/** Position encodings without a model: the tables of tasks/explaining/tables.py. */
import { dot } from "./matrix.js";
import { badParameter, Params } from "./params.js";

const KINDS = ["sinusoidal", "rotary", "alibi"];
const POSITIONS = 64;
const MOST_FEATURES = 256;
const WIDTHS = [4, 8, 16, 32, 64, 128]; // that the page's slider has
const ALIBI_HEADS = 8;
const SHOWN_HEADS = [0, 3, 7];
const FURTHER = 20; // the second position from which distances are measured

/** @type {<T>(n: number, each: (at: number) => T) => T[]} */
const times = (n, each) => Array.from({ length: n }, (_, at) => each(at));

/** Radians per position of each pair of features. @type {(d: number) => number[]} */
const frequencies = (d) => times(d / 2, (m) => 10_000 ** ((-2 * m) / d));

/** @type {(n: number, d: number) => number[][]} */
const sinusoids = (n, d) =>
  times(n, (p) => frequencies(d).flatMap((f) => [Math.sin(p * f), Math.cos(p * f)]));

/** @type {(kind: string, d: number) => number[][]} */
function table(kind, d) {
  if (kind === "sinusoidal") return sinusoids(POSITIONS, d);
  if (kind === "rotary")
    return times(POSITIONS, (p) =>
      frequencies(d).map((f) => p * Math.atan2(Math.sin(f), Math.cos(f))),
    );
  // the bias of a head falls by its slope with each step of distance
  return times(ALIBI_HEADS, (h) => times(POSITIONS, (p) => -(2 ** (-h - 1)) * p));
}

/** @type {(kind: string, d: number) => {curves: {name: string, numbers: number[]}[], difference: number}} */
function curves(kind, d) {
  if (kind === "alibi") {
    const biases = table(kind, d);
    // where all scores are equal, the weights are the softmax of the bias
    const weights = (/** @type {number[]} */ bias) => {
      const powers = bias.map(Math.exp);
      const total = powers.reduce((sum, x) => sum + x, 0);
      return powers.map((x) => x / total);
    };
    const of = SHOWN_HEADS.map((h) => ({ name: `head ${h}`, numbers: weights(biases[h]) }));
    return { curves: of, difference: 0 };
  }
  // one vector of length 1 everywhere, rotated to its position
  const rotated = (/** @type {number} */ p) =>
    frequencies(d).flatMap((f) => {
      const [sin, cos] = [Math.sin(p * f), Math.cos(p * f)];
      return [(cos - sin) / Math.sqrt(d), (cos + sin) / Math.sqrt(d)];
    });
  const waves = kind === "sinusoidal";
  const vectors = waves ? sinusoids(2 * POSITIONS, d) : times(2 * POSITIONS, rotated);
  const found = times(POSITIONS, (p) =>
    times(POSITIONS, (distance) => dot(vectors[p], vectors[p + distance])),
  );
  const name = waves ? "PE(p) · PE(p + distance)" : "q · k, rotated to p and p + distance";
  return {
    curves: [0, FURTHER].map((p) => ({ name: `${name}, p = ${p}`, numbers: found[p] })),
    difference: Math.max(...found.flatMap((row) => row.map((x, at) => Math.abs(x - found[0][at])))),
  };
}

/** Six places; as Python, half a step goes to the even one. @type {(x: number) => number} */
function rounded(x) {
  const steps = x * 1e6;
  const down = Math.floor(steps);
  return steps - down === 0.5 ? (down + (down & 1)) / 1e6 : Number(x.toFixed(6));
}

/** Answer one position encoding without a model, of d features. @type {(query?: Query) => any} */
export function encodingsAnswer(query) {
  const params = new Params(query);
  const d = params.number("d", 64);
  if (d < 2 || d > MOST_FEATURES || d % 2)
    throw badParameter(`d=${d} is not an even number from 2 to ${MOST_FEATURES}`);
  const kind = params.word("kind", KINDS);
  return {
    ...{ kind, d, n: POSITIONS, widths: WIDTHS },
    table: table(kind, d).map((row) => row.map(rounded)),
    ...curves(kind, d),
  };
}
