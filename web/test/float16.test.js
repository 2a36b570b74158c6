import assert from "node:assert/strict";
import { test } from "node:test";
import { colourTable, FLOAT16, positionIn } from "../screens/map/colouring.js";
import { PALETTES } from "../parts/colour.js";

const ONE = 0x3c00;
const HALF = 0x3800;
const MINUS_TWO = 0xc000;
const INFINITY = 0x7c00;
const MINUS_INFINITY = 0xfc00;
const NAN = 0x7e00;

test("bit patterns stand for the numbers of IEEE 754", () => {
  assert.deepEqual(
    [ONE, HALF, MINUS_TWO, 0x0000].map((bits) => FLOAT16[bits]),
    [1, 0.5, -2, 0],
  );
  assert.equal(FLOAT16[0x7bff], 65504); // the largest
  assert.equal(FLOAT16[0x0001], 2 ** -24); // the smallest subnormal
  assert.equal(FLOAT16[0x0400], 2 ** -14); // the smallest normal
  assert.equal(FLOAT16[0x3555], 0.333251953125); // nearest to 1/3
  assert.equal(FLOAT16[INFINITY], Infinity);
  assert.equal(FLOAT16[MINUS_INFINITY], -Infinity);
  assert.ok(Number.isNaN(FLOAT16[NAN]));
});

test("positive patterns rise", () => {
  for (let bits = 1; bits < 0x7c00; bits += 1) assert.ok(FLOAT16[bits] > FLOAT16[bits - 1]);
});

test("positions between the limits, by logarithm and linear", () => {
  const log = positionIn({ low: -8, high: 0, scale: "log" });
  assert.deepEqual([-8, -4, 0].map(log), [0, 0.5, 1]);
  const linear = positionIn({ low: -1, high: 0, scale: "linear" });
  assert.deepEqual([-1, Math.log2(0.75), 0].map(linear), [0, 0.5, 1]);
});

test("a colour table is transparent for masked and outside, and opaque for numbers", () => {
  const table = colourTable({ palette: PALETTES.viridis, low: -2, high: 0, scale: "log" }, 0);
  assert.equal(table[MINUS_INFINITY], 0);
  assert.equal(table[NAN], 0);
  assert.equal(table[0x0000], 0xff25e7fd); // log2 = 0, the highest: fde725 as ABGR
  assert.equal(table[MINUS_TWO], 0xff540144); // log2 = -2, the lowest: 440154 as ABGR
  assert.equal(table[0xc900], table[MINUS_TWO]); // below the limits
});

test("an offset shifts every number", () => {
  const range = { palette: PALETTES.magma, low: -4, high: 0, scale: "log" };
  assert.equal(colourTable(range, 2)[MINUS_TWO], colourTable(range, 0)[0x0000]);
});
