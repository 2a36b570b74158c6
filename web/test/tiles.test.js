import assert from "node:assert/strict";
import { test } from "node:test";
import { colourLimits, log2Shift } from "../screens/map/colouring.js";
import { roundStep } from "../screens/map/draw.js";
import { TileCache, tileKey } from "../screens/map/fetching.js";
import {
  clampView,
  tileLevel,
  toCell,
  toPixel,
  visibleCells,
  visibleTiles,
  wholeMatrix,
  zoomAt,
} from "../screens/map/viewport.js";

const INFO = { n_q: 1100, n_k: 1000, tile: 256, max_zoom: 3, how: ["share", "max"] };
const BOX = { left: 100, top: 50, width: 400, height: 440 };

/** Let pending promises settle. */
const settle = () => new Promise((resolve) => setTimeout(resolve));

/** A cache whose requests are answered by hand: `calls` holds them in order. */
function manualCache() {
  /** @type {any[]} */
  const calls = [];
  const cache = new TileCache(
    (path, query, signal) =>
      new Promise((resolve, reject) => calls.push({ path, query, signal, resolve, reject })),
    () => {},
  );
  return { cache, calls };
}

/** @type {(x: number, effort?: number) => any} */
const request = (x, effort) => ({
  key: `key ${x}`,
  path: `tiles/0/${x}/0`,
  query: {},
  read: (/** @type {ArrayBuffer} */ buffer) => new Uint16Array(buffer),
  effort,
});
const ANSWER = { buffer: new ArrayBuffer(4), exact: true, samples: 1 };

test("at most six tiles are fetched at a time, and the next when one arrives", async () => {
  const { cache, calls } = manualCache();
  cache.want(Array.from({ length: 9 }, (_, x) => request(x)));
  assert.equal(calls.length, 6);
  assert.equal(cache.waiting, 6);
  calls[0].resolve(ANSWER);
  await settle();
  assert.equal(calls.length, 7);
  assert.deepEqual(cache.get("key 0")?.values, new Uint16Array(2));
  cache.close();
});

test("a tile that is no longer wanted is aborted, one that is stays", () => {
  const { cache, calls } = manualCache();
  cache.want([request(0), request(1)]);
  cache.want([request(1), request(2)]);
  assert.deepEqual(
    calls.map(({ signal }) => signal.aborted),
    [true, false, false],
  );
  cache.close();
});

test("exact tiles are kept; sampled ones are requested with more effort, one at a time", async () => {
  const { cache, calls } = manualCache();
  cache.want([request(0), request(1), request(2)]);
  calls[0].resolve(ANSWER);
  calls[1].resolve({ ...ANSWER, exact: false });
  calls[2].resolve({ ...ANSWER, exact: false });
  await settle();
  cache.want([request(0, 4), request(1, 4), request(2, 4)]);
  assert.deepEqual(
    calls.slice(3).map(({ path, query }) => [path, query.effort]),
    [["tiles/0/1/0", 4]],
  );
  cache.close();
});

test("a failed tile waits before it is requested again", async () => {
  const { cache, calls } = manualCache();
  cache.want([request(0)]);
  calls[0].reject(Object.assign(new Error("busy"), { code: "busy" }));
  await settle();
  cache.want([request(0)]);
  assert.equal(calls.length, 1);
  await new Promise((resolve) => setTimeout(resolve, 600));
  assert.equal(calls.length, 2);
  cache.close();
});

test("the 192 last used tiles are kept", async () => {
  const { cache, calls } = manualCache();
  for (let x = 0; x < 193; x += 1) {
    if (x > 0) cache.get("key 0");
    cache.want([request(x)]);
    calls[x].resolve(ANSWER);
    await settle();
  }
  assert.ok(cache.get("key 0"));
  assert.equal(cache.get("key 1"), undefined);
});

test("tiles of other heads and aggregates have other keys", () => {
  const place = { z: 1, x: 2, y: 3 };
  const keys = ["share", "max"].flatMap((how) =>
    [0, 1].map((h) => tileKey({ l: 0, h, how }, place)),
  );
  assert.equal(new Set(keys).size, 4);
});

test("cells and pixels are inverse to each other", () => {
  const view = { x: 300, y: 700, z: 2.3 };
  const [left, top] = toPixel(view, INFO, BOX, 310.5, 650.25);
  const [x, y] = toCell(view, INFO, BOX, left, top);
  assert.ok(Math.abs(x - 310.5) < 1e-9 && Math.abs(y - 650.25) < 1e-9);
});

test("zooming keeps the cell under the pointer", () => {
  const view = { x: 300, y: 700, z: 2.3 };
  const before = toCell(view, INFO, BOX, 180, 90);
  const after = toCell(zoomAt(view, INFO, BOX, 1.5, 180, 90), INFO, BOX, 180, 90);
  before.forEach((cell, axis) => assert.ok(Math.abs(cell - after[axis]) < 1e-9));
});

test("the whole matrix is visible at first, and a view stays inside", () => {
  const whole = wholeMatrix(INFO, BOX);
  assert.deepEqual(visibleCells({ view: whole, info: INFO, box: BOX }), {
    j0: 0,
    j1: 1000,
    i0: 0,
    i1: 1100,
  });
  const outside = clampView({ x: -5, y: 9999, z: 99 }, INFO, BOX);
  assert.deepEqual([outside.x, outside.y], [0, 1100]);
  assert.ok(outside.z < 99);
});

test("visible tiles cover the view, the nearest to its centre first", () => {
  const view = { x: 700, y: 300, z: 3 };
  const tiles = visibleTiles(view, INFO, BOX, 3);
  assert.deepEqual(tiles[0], { z: 3, x: 2, y: 1 });
  const places = tiles.map(({ x, y }) => `${x},${y}`).sort();
  assert.deepEqual(places, ["1,0", "1,1", "1,2", "2,0", "2,1", "2,2", "3,0", "3,1", "3,2"]);
  assert.deepEqual(visibleTiles(wholeMatrix(INFO, BOX), INFO, BOX, 0), [{ z: 0, x: 0, y: 0 }]);
  assert.deepEqual(tileLevel({ x: 0, y: 0, z: 9 }, INFO, 2), { z: 3, bin: 1 });
});

test("aggregates are shifts of what is sent, and limits follow the zoom", () => {
  assert.equal(log2Shift("share", 8, INFO), 0);
  assert.equal(log2Shift("mean", 8, INFO), -3);
  assert.equal(log2Shift("lift", 1000, INFO), 0);
  const state = /** @type {any} */ ({ aggregate: "share", limits: null });
  assert.ok(colourLimits(state, 8, INFO)[0] > colourLimits(state, 1, INFO)[0]);
  assert.deepEqual(colourLimits({ ...state, limits: "-7,-2" }, 8, INFO), [-7, -2]);
  assert.deepEqual(
    colourLimits({ ...state, limits: "3,1" }, 8, INFO),
    colourLimits(state, 8, INFO),
  );
});

test("labels are at round distances", () => {
  assert.deepEqual([0.3, 1, 1.5, 3, 7, 12, 40, 60].map(roundStep), [1, 1, 2, 5, 10, 20, 50, 100]);
});
