/** One state for all screens, and where it is kept: in the address of a page, behind its #, or in a notebook's cell. */

export const SCREENS = ["walk", "heads", "geometry", "alignment", "map"];

/** What is null has not been chosen: each screen begins where it shows the most. */
const FIRST = {
  screen: "walk", run: null, l: null, h: null, i: null, j: null, step: "tokens",
  word: null, la: null, a: null, lb: null, b: null, alpha: 1, x: null, y: null, z: null,
  of: "mean", agg: "share", scale: "log", lim: null, palette: "viridis",
};
const NUMBERS = new Set(["l", "h", "i", "j", "word", "la", "a", "lb", "b", "alpha", "x", "y", "z"]);

/** What each screen shows, and so what its address says. */
const SHOWN = {
  walk: ["l", "h", "i", "j", "step"],
  heads: ["l", "h", "la", "a", "lb", "b", "i"],
  geometry: ["l", "i", "j", "alpha"],
  alignment: ["l", "h", "word", "of"],
  map: ["l", "h", "x", "y", "z", "agg", "scale", "lim", "palette"],
};

export function read(path, query) {
  const state = { ...FIRST };
  const [, run, screen] = path.match(/\/s\/([^/]+)(?:\/([^/]+))?/) ?? [];
  if (run) state.run = decodeURIComponent(run);
  if (SCREENS.includes(screen)) state.screen = screen;
  for (const [name, text] of new URLSearchParams(query)) {
    if (!(name in FIRST) || name === "run" || name === "screen") continue;
    if (!NUMBERS.has(name)) state[name] = text;
    else if (text !== "" && Number.isFinite(Number(text))) state[name] = Number(text);
  }
  return state;
}

export function written(state) {
  const query = SHOWN[state.screen].filter((name) => state[name] !== null && state[name] !== FIRST[name]);
  const said = query.map((name) => `${name}=${encodeURIComponent(state[name])}`).join("&");
  return `/s/${encodeURIComponent(state.run)}/${state.screen}${said ? `?${said}` : ""}`;
}

/** In the address of the page. A step taken can be gone back; what changes while one drags replaces it. */
export const inAddress = {
  read: () => read(location.pathname, location.search),
  write: (state, step) => history[step ? "pushState" : "replaceState"](null, "", written(state)),
  listen(changed) {
    const told = () => changed(this.read());
    addEventListener("popstate", told);
    return () => removeEventListener("popstate", told);
  },
};

/** Behind the #: a file that is opened from disk has no other address of its own, and one in a frame has not even that. */
export const inHash = (start) => {
  let own = start;
  return {
    read() {
      const [path, query = ""] = (location.hash.slice(1) || own).split("?");
      return read(path, query);
    },
    write(state, step) {
      own = written(state);
      if (`#${own}` === location.hash) return;
      try {
        history[step ? "pushState" : "replaceState"](null, "", `#${own}`);
      } catch {
        // in a sandbox the address is not ours to change
      }
    },
    listen(changed) {
      const told = () => changed(this.read());
      addEventListener("popstate", told);
      return () => removeEventListener("popstate", told);
    },
  };
};

/** Nowhere but here: a page may hold many of these. */
export const inMemory = (given) => ({
  read: () => ({ ...FIRST, ...given }),
  write() {},
  listen: () => () => {},
});
