import assert from "node:assert/strict";
import { test } from "node:test";
import { fits, misfit } from "../screens/image/fitting.js";

test("a picture fits a grid of its own shape, to half a patch", () => {
  const grid = { rows: 14, columns: 14 };
  assert.ok(fits(224, 224, grid));
  assert.ok(fits(640, 640, grid));
  assert.ok(fits(224, 218, grid));
  assert.ok(!fits(224, 210, grid));
  assert.ok(!fits(640, 480, grid));
  assert.ok(fits(1000, 667, { rows: 24, columns: 36 }));
  assert.ok(!fits(640, 480, { rows: 2, columns: 2 }));
});

test("the sentence says what would fit", () => {
  assert.equal(
    misfit(640, 480, { rows: 14, columns: 14 }),
    "This picture has 640 x 480 pixels (width x height), and 14 rows x 14 columns of square " +
      "patches do not cover that. Choose what the model read, such as 480 x 480 pixels of it.",
  );
});
