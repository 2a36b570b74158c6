/** Half-precision numbers: a tile is coloured by looking its 16 bits up in a table, one colour for each of the 65,536. */
import { along } from "../parts/colour.js";

/** What each pattern of 16 bits says. */
export const VALUES = Float32Array.from({ length: 65536 }, (_, bits) => {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
});

/**
 * Where a number stands between the limits, from 0 to 1.
 * @param {{low: number, high: number, scale: "log" | "linear"}} how  the limits are powers of two
 */
export function placed({ low, high, scale }) {
  const [a, b] = [2 ** low, 2 ** high];
  return scale === "log" ? (log2) => (log2 - low) / (high - low) : (log2) => (2 ** log2 - a) / (b - a);
}

/** A colour for every pattern of bits. Masked (-inf) and outside (NaN) stay clear: what is drawn below says which. */
export function table(how, offset) {
  const ramp = Array.from({ length: 1024 }, (_, at) => {
    const [r, g, b] = along(how.palette, at / 1023);
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
  const place = placed(how);
  const colours = new Uint32Array(65536);
  for (let bits = 0; bits < 65536; bits += 1) {
    const log2 = VALUES[bits];
    if (Number.isNaN(log2) || log2 === -Infinity) continue;
    colours[bits] = ramp[Math.max(0, Math.min(1023, Math.round(place(log2 + offset) * 1023)))];
  }
  return colours;
}

/** Colour a tile. `last` is its last column where that stands for fewer keys than the others, with colours of its own. */
export function coloured(tile, size, colours, last) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const picture = new ImageData(size, size);
  const out = new Uint32Array(picture.data.buffer);
  for (let at = 0; at < out.length; at += 1) out[at] = colours[tile[at]];
  if (last) for (let at = last.column; at < out.length; at += size) out[at] = last.colours[tile[at]];
  canvas.getContext("2d").putImageData(picture, 0, 0);
  return canvas;
}
