import assert from "node:assert/strict";
import { test } from "node:test";
import { importBundled } from "../bundle.js";

const { newWords } = await importBundled("screens/sources/hidden.jsx");
const { parseState, statePath } = await importBundled("state.js");

test("the words that the old answer does not have are new", () => {
  const marked = (before, after) =>
    newWords(before, after)
      .filter(([, isNew]) => isNew)
      .map(([text]) => text);
  assert.deepEqual(marked("Ich legte mein Geld in die Bank.", "Ich legte mein Geld in das."), [
    "das.",
  ]);
  assert.deepEqual(marked("a b", "a\n b"), []);
  assert.equal(
    newWords("a", "b  c\nd")
      .map(([text]) => text)
      .join(""),
    "b  c\nd",
  );
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
  assert.equal(
    statePath({ ...state, end: 10 }),
    "/s/r1/sources?first=8&end=10&via=hidden&hide=6-8",
  );
});
