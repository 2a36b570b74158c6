import assert from "node:assert/strict";
import { test } from "node:test";
import { commonWords } from "../screens/sources_hidden.js";
import { parseState, statePath } from "../state.js";

test("the words that two answers share are those of the longest common sequence", () => {
  const [before, after] = ["Ich legte mein Geld in die Bank.", "Ich legte mein Geld in das."].map((text) =>
    text.split(" "),
  );
  assert.deepEqual([...commonWords(before, after)], [0, 1, 2, 3, 4]);
  assert.deepEqual([...commonWords(["a", "b", "c"], ["c", "a", "c"])], [1, 2]);
  assert.deepEqual([...commonWords([], ["a"])], []);
});

test("the address of an atlas leads back to the same state", () => {
  const path = "/atlas/plays?other=prose&look=grid&col=sink&l=2&h=5";
  const state = parseState(...path.split("?"));
  assert.equal(state.atlas, "plays");
  assert.equal(state.run, null);
  assert.deepEqual([state.other, state.look, state.l, state.h], ["prose", "grid", 2, 5]);
  assert.equal(statePath(state), path);
});

test("the address of sources keeps the span, and ignores what is no number", () => {
  const state = parseState("/s/r1/sources", "first=8&end=x&hide=6-8&via=hidden");
  assert.deepEqual([state.first, state.end, state.hide, state.via], [8, null, "6-8", "hidden"]);
  assert.equal(statePath({ ...state, end: 10 }), "/s/r1/sources?first=8&end=10&via=hidden&hide=6-8");
});
