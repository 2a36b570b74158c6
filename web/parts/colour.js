/** Colours of numbers. Shares of one by a palette whose lightness only rises; signed numbers by two hues about zero. */

const stops = (hex) => hex.split(" ").map((one) => [0, 2, 4].map((at) => parseInt(one.slice(at, at + 2), 16)));

// viridis and magma: van der Walt & Smith 2015, CC0; cividis: Nuñez, Anderton & Renslow 2018. At 0, 1/8, … 1.
export const PALETTES = {
  viridis: stops("440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725"),
  magma: stops("000004 1d1147 51127c 832681 b73779 e75263 fc8961 fec488 fcfdbf"),
  cividis: stops("00224e 1a386f 434e6c 61656f 7d7c78 9b9476 bcae6c dec958 fee838"),
};

const between = (a, b, t) => a.map((x, at) => Math.round(x + (b[at] - x) * t));

/** The colour at t, from 0 to 1. */
export function along(palette, t) {
  const last = palette.length - 1;
  const place = Math.min(1, Math.max(0, t || 0)) * last;
  const low = Math.min(last - 1, Math.floor(place));
  return between(palette[low], palette[low + 1], place - low);
}

const SIGNED = {
  light: stops("2a6cb0 f4f1ea b8402a"),
  dark: stops("6cb2f0 26282d ef8a6b"),
};

/** Blue below zero, red above, the page's own colour at zero; t from -1 to 1. */
export function signed(t, theme) {
  const strength = Math.sign(t) * Math.sqrt(Math.min(1, Math.abs(t || 0))); // small numbers are to be seen too
  return along(SIGNED[theme], (strength + 1) / 2);
}

export const css = ([r, g, b]) => `rgb(${r},${g},${b})`;

const linear = (channel) => (channel / 255 <= 0.04045 ? channel / 255 / 12.92 : ((channel / 255 + 0.055) / 1.055) ** 2.4);

export const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);

/** Black or white, whichever is read better on that. */
export const ink = (colour) => (luminance(colour) > 0.179 ? "#111" : "#fff");
