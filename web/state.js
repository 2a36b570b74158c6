/** One state for all screens, and where it is kept: in the page's address, behind its #, or in a notebook's cell. */

export const SCREENS = [
  "walk",
  "heads",
  "geometry",
  "alignment",
  "map",
  "sources",
  "output",
  "variance",
  "positions",
];

/**
 * null has not been chosen: each screen then starts where it shows the most.
 * @type {State}
 */
export const DEFAULTS = {
  ...{
    atlas: null,
    other: null,
    look: "scatter",
    col: "previous",
    row: "entropy",
    only: null,
    habit: null,
  },
  ...{ first: null, end: null, via: null, cut: null, low: null, high: null, hide: null },
  ...{ screen: "walk", run: null, l: null, h: null, i: null, j: null, step: "softmax" },
  ...{
    kind: null,
    card: null,
    at: null,
    pieces: 0,
    d: 64,
    temperature: 1,
    top_k: 0,
    top_p: 1,
    edits: null,
  },
  ...{ word: null, la: null, a: null, lb: null, b: null, alpha: 1, x: null, y: null, z: null },
  ...{
    of: "mean",
    encoding: "sinusoidal",
    how: "share",
    scale: null,
    lim: null,
    palette: "weights",
  },
};
const NUMBERS = new Set(
  "l h i j word la a lb b alpha x y z at pieces d temperature top_k top_p first end low high".split(
    " ",
  ),
);
/** The fields that every screen writes into its address. @type {(keyof State)[]} */
const COMMON_FIELDS = ["pieces", "edits", "card", "at"];

/**
 * The fields that each screen writes into its address.
 * @type {Record<string, (keyof State)[]>}
 */
const ADDRESS_FIELDS = {
  walk: ["l", "h", "i", "j", "step", "kind"],
  heads: ["l", "h", "la", "a", "lb", "b", "i", "kind"],
  geometry: ["l", "i", "j", "alpha"],
  alignment: ["l", "h", "word", "of"],
  map: ["l", "h", "x", "y", "z", "how", "scale", "lim", "palette"],
  sources: ["first", "end", "via", "cut", "low", "high", "hide"],
  output: ["i", "temperature", "top_k", "top_p"],
  variance: ["d"],
  positions: ["l", "h", "i", "kind", "encoding", "d"],
};

/** The fields in the address of an atlas. @type {(keyof State)[]} */
const ATLAS_FIELDS = ["other", "look", "col", "row", "only", "l", "h", "habit"];

/**
 * Return the state that a path such as /s/r1/walk and its query hold; unknown fields are ignored.
 * @param {string} path
 * @param {string} query
 * @returns {State}
 */
export function parseState(path, query) {
  /** @type {Record<string, unknown>} */
  const state = { ...DEFAULTS };
  const atlas = path.match(/^\/atlas\/([^/]+)/)?.[1];
  if (atlas) state.atlas = decodeURIComponent(atlas);
  const [, run, screen] = path.match(/\/s\/([^/]+)(?:\/([^/]+))?/) ?? [];
  if (run) state.run = decodeURIComponent(run);
  if (SCREENS.includes(screen)) state.screen = screen;
  for (const [name, text] of new URLSearchParams(query)) {
    if (!(name in DEFAULTS) || ["run", "screen", "atlas"].includes(name)) continue;
    if (!NUMBERS.has(name)) state[name] = text;
    else if (text !== "" && Number.isFinite(Number(text))) state[name] = Number(text);
  }
  return /** @type {any} */ (state);
}

/**
 * Return the path and query of a state, without the fields at their defaults.
 * @param {State} state
 */
export function statePath(state) {
  if (!state.run && !state.atlas) return "/";
  const written = state.atlas ? ATLAS_FIELDS : [...ADDRESS_FIELDS[state.screen], ...COMMON_FIELDS];
  const fields = written.filter((name) => state[name] !== null && state[name] !== DEFAULTS[name]);
  const query = fields
    .map((name) => `${name}=${encodeURIComponent(String(state[name]))}`)
    .join("&");
  const place = state.atlas
    ? `/atlas/${encodeURIComponent(state.atlas)}`
    : `/s/${encodeURIComponent(String(state.run))}/${state.screen}`;
  return `${place}${query ? `?${query}` : ""}`;
}

/**
 * @param {() => State} read
 * @returns {StateStore["listen"]}
 */
const listenToHistory = (read) => (changed) => {
  const listener = () => changed(read());
  addEventListener("popstate", listener);
  return () => removeEventListener("popstate", listener);
};

/** @type {(step: boolean, address: string) => void} */
const writeHistory = (step, address) =>
  history[step ? "pushState" : "replaceState"](null, "", address);

const readAddress = () => parseState(location.pathname, location.search);

/**
 * Keep the state in the page's address. A step adds an entry to the history; a change while dragging replaces it.
 * @type {StateStore}
 */
export const addressStore = {
  read: readAddress,
  write: (state, step) => writeHistory(step, statePath(state)),
  listen: listenToHistory(readAddress),
};

/**
 * Keep the state behind the #, for a file opened from disk; inside a sandboxed frame it is kept in memory alone.
 * @param {string} start  the path of the first state
 * @returns {StateStore}
 */
export const hashStore = (start) => {
  let current = start;
  const read = () => {
    const [path, query = ""] = (location.hash.slice(1) || current).split("?");
    return parseState(path, query);
  };
  return {
    read,
    write(state, step) {
      current = statePath(state);
      if (`#${current}` === location.hash) return;
      try {
        writeHistory(step, `#${current}`);
      } catch {
        // a sandboxed frame may not change its address
      }
    },
    listen: listenToHistory(read),
  };
};

/**
 * Keep the state in memory: a notebook may show several explorers.
 * @param {Partial<State>} start
 * @returns {StateStore}
 */
export const memoryStore = (start) => ({
  read: () => ({ ...DEFAULTS, ...start }),
  write() {},
  listen: () => () => {},
});
