import assert from "node:assert/strict";
import { test } from "node:test";
import { importBundled } from "../bundle.js";

const {
  addressStore,
  BY_ADDRESS,
  DEFAULTS,
  memoryStore,
  merge,
  NOTHING_CHOSEN,
  parseState,
  stateAddress,
  statePath,
} = await importBundled("state/state.js");

/**
 * Where each name of an address lies in the state. Readers share addresses: no name may change or
 * go.
 */
const STABLE = {
  ...{ l: "layer", h: "head", i: "query", j: "key", kind: "kind", edits: "edits" },
  ...{
    pieces: "pieces",
    present: "presenting",
    d: "features",
    card: "lesson",
    at: "caption",
    step: "walk.step",
  },
  ...{ la: "heads.layerA", a: "heads.headA", lb: "heads.layerB", b: "heads.headB" },
  ...{ alpha: "geometry.progress", word: "alignment.word", of: "alignment.weightsOf" },
  ...{ x: "map.column", y: "map.row", z: "map.zoom", how: "map.aggregate", scale: "map.scale" },
  ...{ lim: "map.limits", palette: "map.palette", first: "sources.first", end: "sources.end" },
  ...{ via: "sources.method", cut: "sources.cut", low: "sources.low", high: "sources.high" },
  ...{ hide: "sources.hidden", temperature: "output.temperature", top_k: "output.topK" },
  ...{ top_p: "output.topP", encoding: "positions.encoding", other: "atlas.other" },
  ...{ look: "atlas.look", col: "atlas.across", row: "atlas.up", only: "atlas.only" },
  ...{ habit: "atlas.habit", whose: "image.weightsOf", side: "heads.side" },
  ...{ seed: "output.seed", words: "output.words" },
  ...{ ask: "asked", than: "than", control: "heads.control" },
  ...{ model: "model", text: "text", target: "target" },
  ...{ sl: "sources.ofLayer", sh: "sources.ofHead" },
};

/** An address of every screen, with all of its fields at other than their initial values. */
const ADDRESSES = [
  "/s/r1/walk?l=1&h=2&i=3&j=4&step=mask&kind=cross&pieces=1&edits=scale&card=qkv&at=2",
  "/s/r1/heads?l=1&h=2&la=0&a=1&lb=2&b=3&i=4&kind=self",
  "/s/r1/geometry?l=1&i=2&j=3&alpha=0.5",
  "/s/r1/alignment?l=1&h=2&word=3&of=head",
  "/s/r1/map?l=1&h=2&x=3.5&y=4.5&z=2.25&how=max&scale=log&lim=-7%2C-2&palette=viridis",
  "/s/r1/image?l=1&h=2&i=3&whose=all",
  "/s/r1/sources?first=8&end=10&via=hidden&cut=words&low=2&high=9&hide=6-8",
  "/s/r1/output?i=3&temperature=0.5&top_k=5&top_p=0.9",
  "/s/r1/variance?d=512",
  "/s/r1/positions?l=1&h=2&i=3&kind=cross&encoding=rotary&d=32",
  "/atlas/plays?other=prose&look=grid&col=sink&row=first&only=sink&l=2&h=5&habit=first",
  "/s/r1/walk?l=1&h=2&i=3&j=4&ask=why&than=5",
  "/s/r1/heads?l=1&h=2&la=1&a=2&i=3&j=4&ask=follows&side=b",
  "/s/r1/heads?l=1&h=2&i=3&control=s2",
  "/?card=quiz",
  "/s/a%20run%2F1/walk",
  "/",
];

test("the names in an address are stable", () => {
  const places = [...BY_ADDRESS].map(([address, { group, name }]) => [
    address,
    group ? `${group}.${name}` : name,
  ]);
  assert.deepEqual(Object.fromEntries(places), STABLE);
});

test("an address leads back to itself", () => {
  for (const address of ADDRESSES) {
    const [path, query = ""] = address.split("?");
    assert.equal(statePath(parseState(path, query)), address);
  }
});

test("what makes a sentence stands behind the #, which is not sent", () => {
  const texts = ["Good morning.", "a#b?c&d=e+f%20", "„Größe“ 🔭 \n𝒳", "w".repeat(20_000)];
  for (const text of texts) {
    const source = { model: "translator-en-de", text, target: "Guten Morgen." };
    const state = merge(parseState(...ADDRESSES[0].split("?")), source);
    const address = stateAddress(state);
    const { pathname, search, hash } = new URL(address, "http://127.0.0.1:8000");
    assert.equal(pathname + search, statePath(state));
    globalThis.location = /** @type {any} */ ({ pathname, search, hash });
    assert.deepEqual(addressStore.read(), state);
  }
});

test("an address may hold the source in its query, and recordings have none", () => {
  const state = parseState("/s/-/walk", "text=Good+morning.&model=gpt");
  assert.deepEqual([state.run, state.text, state.model], ["-", "Good morning.", "gpt"]);
  assert.equal(stateAddress(merge(state, NOTHING_CHOSEN)), "/s/-/walk");
  assert.equal(stateAddress(merge(state, { run: null })), "/");
});

test("the address of an atlas leads back to the same state", () => {
  const path = "/atlas/plays?other=prose&look=grid&col=sink&l=2&h=5";
  const state = parseState(...path.split("?"));
  assert.equal(state.atlas.name, "plays");
  assert.equal(state.run, null);
  const { other, look } = state.atlas;
  assert.deepEqual([other, look, state.layer, state.head], ["prose", "grid", 2, 5]);
  assert.equal(statePath(state), path);
});

test("the address of sources keeps the span, and ignores what is no number", () => {
  const state = parseState("/s/r1/sources", "first=8&end=x&hide=6-8&via=hidden");
  const { first, end, hidden, method } = state.sources;
  assert.deepEqual([first, end, hidden, method], [8, null, "6-8", "hidden"]);
  assert.equal(
    statePath(merge(state, { sources: { end: 10 } })),
    "/s/r1/sources?first=8&end=10&via=hidden&hide=6-8",
  );
});

test("what an address has too much changes nothing", () => {
  const junk = "run=r2&screen=map&atlas=plays&constructor=1&unknown=2&l=&h=x";
  assert.deepEqual(parseState("/s/r1/nowhere", junk), { ...DEFAULTS, run: "r1" });
  assert.deepEqual(parseState("/", "l=1&l=x").layer, 1);
});

test("a notebook's cell starts with names of an address", () => {
  const state = memoryStore({ run: "r1", screen: "heads", l: 2, h: null, d: 8 }).read();
  const { run, screen, layer, head, features } = state;
  assert.deepEqual([run, screen, layer, head, features], ["r1", "heads", 2, null, 8]);
});

test("what was chosen in a run is forgotten with it, and settings stay", () => {
  const [path, query] = ADDRESSES[4].split("?");
  const state = merge(parseState(path, query), NOTHING_CHOSEN);
  assert.deepEqual([state.layer, state.map.column, state.map.zoom], [null, null, null]);
  assert.deepEqual([state.map.aggregate, state.map.limits], ["max", "-7,-2"]);
  assert.equal(state.run, "r1");
});
