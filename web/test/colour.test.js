import assert from "node:assert/strict";
import { test } from "node:test";
import {
  css,
  luminance,
  PALETTES,
  paletteColour,
  readableInk,
  signedColour,
  WEIGHTS,
  weightColour,
} from "../parts/colour.js";

test("a palette starts and ends with its first and last stop", () => {
  assert.deepEqual(paletteColour(PALETTES.viridis, 0), [0x44, 0x01, 0x54]);
  assert.deepEqual(paletteColour(PALETTES.viridis, 1), [0xfd, 0xe7, 0x25]);
  assert.deepEqual(paletteColour(PALETTES.viridis, 0.5), [0x21, 0x91, 0x8c]);
});

test("numbers outside of 0 to 1 are clamped, and NaN is 0", () => {
  for (const palette of Object.values(PALETTES)) {
    assert.deepEqual(paletteColour(palette, -3), palette[0]);
    assert.deepEqual(paletteColour(palette, 7), palette.at(-1));
    assert.deepEqual(paletteColour(palette, NaN), palette[0]);
  }
});

test("the lightness of every palette rises", () => {
  for (const palette of Object.values(PALETTES)) {
    const lightness = Array.from({ length: 101 }, (_, at) =>
      luminance(paletteColour(palette, at / 100)),
    );
    lightness.slice(1).forEach((light, at) => assert.ok(light >= lightness[at] - 0.002));
    assert.ok(lightness[100] > lightness[0] + 0.3);
  }
});

test("signed numbers are blue below zero, red above, and the background at zero", () => {
  for (const theme of ["light", "dark"]) {
    const [below, zero, above] = [-1, 0, 1].map((t) => signedColour(t, theme));
    assert.ok(below[2] > below[0]);
    assert.ok(above[0] > above[2]);
    assert.ok(Math.max(...zero) - Math.min(...zero) <= 10);
    assert.deepEqual(signedColour(-5, theme), below);
  }
});

test("text on a colour has a contrast of more than 4", () => {
  for (const palette of Object.values(PALETTES)) {
    for (let t = 0; t <= 1; t += 0.01) {
      const colour = paletteColour(palette, t);
      const ink = readableInk(colour) === "#fff" ? 1 : luminance([0x11, 0x11, 0x11]);
      const [low, high] = [luminance(colour), ink].sort((a, b) => a - b);
      assert.ok((high + 0.05) / (low + 0.05) > 4, css(colour));
    }
  }
});

test("the larger a weight, the further its colour from the page", () => {
  const lightness = (/** @type {"light" | "dark"} */ theme) =>
    Array.from({ length: 101 }, (_, at) => luminance(weightColour(at / 100, theme)));
  lightness("dark").forEach((x, at, all) => assert.ok(at === 0 || x > all[at - 1]));
  lightness("light").forEach((x, at, all) => assert.ok(at === 0 || x < all[at - 1]));
  assert.deepEqual(weightColour(0.25, "light"), WEIGHTS.light[4]);
  assert.deepEqual(weightColour("nan", "dark"), WEIGHTS.dark[0]);
});
