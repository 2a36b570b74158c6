/** Tokens by the stretch: a short text at once, of a long one what is around a place. */

const CHUNK = 256;
const SHORT = 512;

/** What to ask for, to know the token at a place of an axis. */
export function stretch(attention, axis, at) {
  const n = axis === "q" ? attention.n_q : attention.n_k;
  if (n <= SHORT) return { l: attention.l, axis };
  const start = Math.floor(at / CHUNK) * CHUNK;
  return { l: attention.l, axis, start, stop: Math.min(n, start + CHUNK) };
}
