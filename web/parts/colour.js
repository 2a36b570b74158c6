/**
 * Colours of numbers: weights by one palette on every screen, signed numbers by two hues around
 * zero.
 */
import { toNumber } from "./numbers.js";

/**
 * Return the colours of a row of hexadecimal numbers.
 * @param {string} hex  colours as six hexadecimal digits, separated by spaces
 */
const parseStops = (hex) =>
  hex.split(" ").map((stop) => [0, 2, 4].map((at) => parseInt(stop.slice(at, at + 2), 16)));

/**
 * viridis and magma: van der Walt & Smith 2015, CC0; cividis: Nuñez, Anderton & Renslow 2018. At 0,
 * 1/8, … 1.
 * @type {Record<string, Colour[]>}
 */
export const PALETTES = {
  viridis: parseStops("440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725"),
  magma: parseStops("000004 1d1147 51127c 832681 b73779 e75263 fc8961 fec488 fcfdbf"),
  cividis: parseStops("00224e 1a386f 434e6c 61656f 7d7c78 9b9476 bcae6c dec958 fee838"),
};

/**
 * From the colour of the page, for no weight, to the one that differs from it most.
 * @type {Record<Theme, Colour[]>}
 */
export const WEIGHTS = {
  light: parseStops("ecefe8 c6dfd9 9fcdca 75b9bc 4da2ab 2f899a 1f6d86 16516f 0f3455"),
  dark: parseStops("23282e 203c46 215262 266a7b 32858f 4da19f 7abdab b2d8b9 eef3cb"),
};

/**
 * Return the colour of a palette at t, from 0 to 1; t is clamped, and NaN is 0.
 * @param {Colour[]} palette
 * @param {number} t
 * @returns {Colour}
 */
export function paletteColour(palette, t) {
  const last = palette.length - 1;
  const position = Math.min(1, Math.max(0, t || 0)) * last;
  const low = Math.min(last - 1, Math.floor(position));
  return palette[low].map((x, channel) =>
    Math.round(x + (palette[low + 1][channel] - x) * (position - low)),
  );
}

/** From negative over zero to positive, in each theme. */
const SIGNED = {
  light: parseStops("2a6cb0 f4f1ea b8402a"),
  dark: parseStops("6cb2f0 26282d ef8a6b"),
};

/**
 * Return the colour of a signed number, t from -1 to 1: blue below zero, red above, the page's
 * background at zero.
 * @param {number} t
 * @param {Theme} theme
 */
export function signedColour(t, theme) {
  // the root makes small numbers visible
  const strength = Math.sign(t) * Math.sqrt(Math.min(1, Math.abs(t || 0)));
  return paletteColour(SIGNED[theme], (strength + 1) / 2);
}

/**
 * Return the colour of a weight: the same on every screen, on every scale from 0 to 1. It follows
 * the square root, because among ten tokens most weights are small.
 * @param {JsonNumber} weight
 * @param {Theme} theme
 */
export const weightColour = (weight, theme) =>
  paletteColour(WEIGHTS[theme], Math.sqrt(toNumber(weight)));

/**
 * Return the function that colours the cells of a matrix of weights. Where there is a mask, a
 * weight of zero is masked: it stays transparent and shows the hatch.
 * @param {Theme} theme
 * @param {boolean} masks
 * @returns {(weight: JsonNumber) => Colour}
 */
export const cellColour = (theme, masks) => (weight) =>
  masks && weight === 0 ? [0, 0, 0, 0] : weightColour(weight, theme);

/** Return a colour as a style sheet writes it. @param {Colour} colour */
export const css = ([r, g, b]) => `rgb(${r},${g},${b})`;

/** Return the linear light of a channel of sRGB. @param {number} channel */
const linear = (channel) =>
  channel / 255 <= 0.04045 ? channel / 255 / 12.92 : ((channel / 255 + 0.055) / 1.055) ** 2.4;

/**
 * Return the relative luminance of a colour, as WCAG defines it, from 0 to 1.
 * @param {Colour} colour
 */
export const luminance = ([r, g, b]) =>
  0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);

/**
 * Return black or white, whichever has more contrast on a colour.
 * @param {Colour} colour
 */
export const readableInk = (colour) => (luminance(colour) > 0.179 ? "#000" : "#fff");
