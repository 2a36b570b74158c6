import assert from "node:assert/strict";
import { test } from "node:test";
import { importBundled } from "../bundle.js";

const { newWords } = await importBundled("screens/sources/hidden.jsx");

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
