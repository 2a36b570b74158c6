/** Tiles and tracks of the map of a worked example: one tile holds it whole, pixel by pixel. */
import { Failure } from "../transport/http.js";
import { ExampleRequest } from "./answers.js";
import { entropy, received } from "./habits.js";
import { sum } from "./matrix.js";
import { withCommas } from "./params.js";

const TILE = 256;

const both = new DataView(new ArrayBuffer(4));

/**
 * Return the bits of a number in half precision, rounded to even.
 * @param {number} x
 */
export function float16(x) {
  both.setFloat32(0, x);
  const bits = both.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  if (Number.isNaN(x)) return sign | 0x7e00;
  const size = Math.abs(both.getFloat32(0));
  if (size >= 65520) return sign | 0x7c00;
  // steps of 2^-24 below 2^-14, else 2^10 steps for each power of two
  const power = Math.max(-14, Math.floor(Math.log2(size || 1e-30)));
  const exponent =
    size >= 2 ** (power + 1) ? power + 1 : size < 2 ** power && power > -14 ? power - 1 : power;
  const steps = size / 2 ** (exponent - 10);
  const down = Math.floor(steps);
  const rest = steps - down;
  const rounded = rest > 0.5 || (rest === 0.5 && down % 2) ? down + 1 : down;
  // a full mantissa carries into the exponent by itself
  return sign | (((exponent + 14) << 10) + rounded);
}

/** The bits of a byte-sized picture, in steps of 1/8 of log2. @type {(x: number) => number} */
const byte = (x) =>
  Number.isNaN(x) ? 0 : x === -Infinity ? 1 : Math.min(255, Math.max(2, Math.round(255 + 8 * x)));

/** @type {(zoom: number[], request: ExampleRequest) => void} */
function check([z, x, y], { view }) {
  if (z || x || y)
    throw new Failure(
      `there is no tile ${z}/${x}/${y} of ${withCommas(view.n_q)} queries x ` +
        `${withCommas(view.n_k)} keys; levels go from 0 to 0`,
      "no-tile",
    );
}

/**
 * Answer a tile or a track: "tiles/0/0/0" or "tracks/0/0".
 * @type {(run: import("./example_run.js").ExampleRun, resource: string, query?: Query) => Bytes}
 */
export function pictureOf(run, resource, query) {
  const request = new ExampleRequest(run, query);
  const [what, ...zoom] = resource.split("/");
  request.require("map");
  const { view, h } = request;
  const weights = view.heads[h].rows.map((row) => row.weights);
  if (what === "tracks") {
    const [z, at] = zoom.map(Number);
    const kind = request.word("kind", ["entropy", "received"]);
    check(kind === "entropy" ? [z, 0, at] : [z, at, 0], request);
    const numbers =
      kind === "entropy" ? weights.map(entropy) : received(view, h).map((x) => x / weights.length);
    const track = new Float32Array(TILE).fill(NaN);
    track.set(numbers);
    return { buffer: track.buffer, exact: true, samples: 1 };
  }
  check(zoom.map(Number), request);
  const isWhole = request.word("fmt", ["f16", "u8"]) === "f16";
  const picture = isWhole ? new Uint16Array(TILE * TILE) : new Uint8Array(TILE * TILE);
  picture.fill(isWhole ? float16(NaN) : byte(NaN));
  view.heads[h].rows.forEach((row, i) =>
    row.weights.forEach((weight, j) => {
      // a weight that is not masked is drawn, however small it is
      const log = row.masked[j] === -Infinity ? -Infinity : logOf(row.masked, j, weight);
      picture[i * TILE + j] = isWhole ? float16(log) : byte(log);
    }),
  );
  return { buffer: picture.buffer, exact: true, samples: 1 };
}

/**
 * Return log2 of a weight, from the scores: a weight may be too small for float64.
 * @type {(masked: number[], j: number, weight: number) => number}
 */
function logOf(masked, j, weight) {
  if (weight > 1e-300) return Math.log2(weight);
  const most = Math.max(...masked);
  const total = sum(masked.map((x) => Math.exp(x - most)));
  return Math.max(-65504, (masked[j] - most) / Math.LN2 - Math.log2(total));
}
