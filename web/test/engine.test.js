/** The engine of worked examples: numbers of the lecture notes, names of runs, and refusals. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { importBundled } from "../bundle.js";

const { withExamples } = await importBundled("transport/worked.js");
const { float16 } = await importBundled("engine/pictures.js");
const { general } = await importBundled("engine/attention.js");

const asked = [];
const transport = withExamples({
  canRun: false,
  ask: async (path) => asked.push(path),
  bytes: async (path) => asked.push(path),
});

test("the context of journey is that of the notes", async () => {
  const { context } = await transport.ask("runs/example-journey/trace", { l: 0, h: 0, i: 1 });
  [0.4419, 0.6515, 0.5683].forEach((x, m) => assert.ok(Math.abs(context[m] - x) < 5e-5));
});

test("a changed number makes a run whose name holds it, and the name opens the same run", async () => {
  const { example } = await transport.ask("runs/example-bank");
  const x = example.inputs[0].numbers.map((row) => [...row]);
  x[2][0] = -1.5;
  const made = await transport.send("runs", {
    example: "bank",
    inputs: { x },
    normalize: "by_sum",
  });
  assert.equal(made.run, "example-bank~x.2.0_-1.5~by_sum");
  assert.deepEqual(await transport.ask(`runs/${made.run}`), made);
  assert.equal(encodeURIComponent(made.run), made.run);
});

test("scores that sum to zero are refused in one sentence", async () => {
  const zeros = { x: [0, 1, 2].map(() => [0, 0, 0]) };
  await assert.rejects(
    transport.send("runs", { example: "bank", inputs: zeros, normalize: "by_sum" }),
    { code: "zero-sum" },
  );
});

test("names that change nothing are refused", async () => {
  for (const change of ["x.9.0_1", "y.0.0_1", "constructor.0.0_1", "<b>", "", "x.0.0_NaN"])
    await assert.rejects(transport.ask(`runs/example-bank~${change}`), { code: "unknown-run" });
  await assert.rejects(transport.ask(`runs/example-bank${"~x.0.0_1".repeat(1000)}`), {
    code: "bad-name",
  });
});

test("all else is asked of the other transport", async () => {
  await transport.ask("runs/r1/trace");
  await transport.ask("models");
  await transport.bytes("runs/example-none/tiles/0/0/0");
  assert.deepEqual(asked, ["runs/r1/trace", "models", "runs/example-none/tiles/0/0/0"]);
  await assert.rejects(transport.send("runs", { text: "Good morning." }), { code: "absent" });
});

test("half precision is rounded to even", () => {
  const bits = { 0: 0, 1: 0x3c00, "-2": 0xc000, 65504: 0x7bff, 65520: 0x7c00, "-Infinity": 0xfc00 };
  for (const [x, expected] of Object.entries(bits)) assert.equal(float16(Number(x)), expected);
  assert.equal(float16(1 + 2 ** -11), 0x3c00);
  assert.equal(float16(1 + 3 * 2 ** -11), 0x3c02);
  assert.equal(float16(2 ** -24), 1);
  assert.equal(float16(2 - 2 ** -12), 0x4000);
});

test("numbers are written as Python's format g writes them", () => {
  const written = { 0.5: "0.5", 2: "2", 1e-7: "1e-07", 123456789: "1.23457e+08", 1000000: "1e+06" };
  for (const [x, said] of Object.entries(written)) assert.equal(general(Number(x)), said);
  assert.equal(general(1 / 3), "0.333333");
});
