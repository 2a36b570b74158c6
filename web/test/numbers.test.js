import assert from "node:assert/strict";
import { test } from "node:test";
import {
  argmax,
  clamp,
  cosine,
  count,
  full,
  largest,
  percent,
  short,
  toNumber,
  traceWeights,
} from "../parts/numbers.js";

test("infinities and NaN are strings in JSON", () => {
  assert.deepEqual(["-inf", "inf", 2.5, 0].map(toNumber), [-Infinity, Infinity, 2.5, 0]);
  assert.ok(["nan", null, undefined].map(toNumber).every(Number.isNaN));
});

test("short numbers have four digits, a true minus, and symbols", () => {
  const shown = [0.31272, -1.2044, 1.9021e-7, 0, -0.00001, 1234567, "-inf", "inf", "nan", null].map(
    (x) => short(x),
  );
  assert.deepEqual(shown, [
    "0.3127",
    "−1.204",
    "1.902e−7",
    "0",
    "−1.000e−5",
    "1.235e+6",
    "−∞",
    "∞",
    "—",
    "—",
  ]);
  assert.equal(short(0.31272, 2), "0.31");
});

test("full numbers have the seven digits of float32, and whole numbers all", () => {
  const shown = [Math.PI, -1 / 3, Math.fround(0.7), 0.1 + 0.2, 1.23456789e-9, 123456789, 0, -2].map(
    full,
  );
  assert.deepEqual(shown, [
    "3.141593",
    "−0.3333333",
    "0.7",
    "0.3",
    "1.234568e−9",
    "123456789",
    "0",
    "−2",
  ]);
  assert.equal(full("-inf"), "−∞");
});

test("percentages", () => {
  const shown = [0.3127, 0.0004, 0, 0.00001, 0.9999, 1, 0.05, "nan"].map(percent);
  assert.deepEqual(shown, ["31.3 %", "0.04 %", "0 %", "< 0.01 %", "100 %", "100 %", "5 %", "—"]);
});

test("counts have commas", () => assert.equal(count(1234567), "1,234,567"));

test("clamp, largest and argmax", () => {
  assert.deepEqual([clamp(5, 0, 3), clamp(-5, 0, 3), clamp(2, 0, 3)], [3, 0, 2]);
  assert.equal(largest([1, -4, Infinity, NaN, 3]), 4);
  assert.equal(argmax([1, 5, 5, 2]), 1);
});

test("the cosine with a zero vector is 0", () => {
  assert.equal(cosine([1, 2], [2, 4]).toFixed(12), "1.000000000000");
  assert.equal(cosine([1, 2], [0, 0]), 0);
});

test("the weights of a trace are read by the name of their step", () => {
  const steps = [
    { name: "scores", formula: "", numbers: [1, 2] },
    { name: "weights", formula: "", numbers: [0.25, 0.75] },
  ];
  assert.deepEqual(traceWeights(/** @type {any} */ ({ steps })), [0.25, 0.75]);
});
