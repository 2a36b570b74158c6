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
  weight,
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
  const shown = [0.3127, 0.0004, 0, 5.12e-6, 1, 0.05, "nan", "inf"].map(percent);
  assert.deepEqual(shown, ["31.3 %", "0.04 %", "0 %", "0.00051 %", "100 %", "5 %", "—", "∞"]);
});

test("percentages at both ends: what is nearly all or nothing does not become it", () => {
  const high = [0.9994, 0.9996, 0.9999, 0.999994, 0.9999999, 1.0000001].map(percent);
  assert.deepEqual(high, ["99.9 %", "99.96 %", "99.99 %", "> 99.99 %", "100 %", "100 %"]);
  const low = [1e-8, 1.04e-8, 9.9e-9, 1e-30].map(percent);
  assert.deepEqual(low, ["0.000001 %", "0.000001 %", "< 0.000001 %", "< 0.000001 %"]);
});

test("weights that are no shares may be negative, or larger than one", () =>
  assert.deepEqual([-0.125, 1.402, -5e-6].map(percent), ["−12.5 %", "140.2 %", "−0.0005 %"]));

test("no percentage from 1e-8 to 1 has an exponent, and each is right in two digits", () => {
  for (let power = 8; power > 0; power -= 1)
    for (const digit of [1, 2.34, 5.05, 9.949]) {
      const x = digit * 10 ** -power;
      const said = percent(x);
      assert.doesNotMatch(said, /e/);
      assert.ok(Math.abs(Number(said.replace(" %", "")) / 100 / x - 1) < 0.051, `${x}: ${said}`);
    }
});

test("weights have four digits, and small ones are percentages", () =>
  assert.deepEqual([0.31272, 0.0001, 5.12e-6, 0, -0.25, -2e-6, 1, "nan"].map(weight), [
    "0.3127",
    "0.0001000",
    "0.00051 %",
    "0",
    "−0.2500",
    "−0.0002 %",
    "1.000",
    "—",
  ]));

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
