/** Which tokens to request: all of a short text, 256 around a position of a long one. */

const CHUNK = 256;
const SHORT = 512;

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
