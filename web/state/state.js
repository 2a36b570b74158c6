/**
 * The state of the page, and where it is kept: in the page's address, behind its #, or in a
 * notebook's cell.
 */
import * as atlas from "../screens/atlas/index.jsx";
import { SCREEN_NAMES, SCREENS } from "../screens/index.js";
import { SHARED, shared } from "./fields.js";

/**
 * Where a field lies in the state: beside the screens, or in the group of one screen.
 * @typedef {{group: ScreenName | "atlas" | null, name: string, field: Field<any>}} Place
 */

/**
 * Return where the fields of a screen lie in the state.
 * @type {(group: Place["group"], fields: Record<string, Field<any>>) => Place[]}
 */
const placesOf = (group, fields) =>
  Object.entries(fields).map(([name, field]) => ({
    group: name in SHARED ? null : group,
    name,
    field,
  }));

/** The fields that every screen writes into its address. */
const EVERYWHERE = placesOf(null, shared("pieces", "edits", "lesson", "caption", "presenting"));

/**
 * What makes the run of a sentence, which stands behind the # of the address. Browsers do not send
 * that part: a text of 4,096 tokens fits there, and not into a request, whose first line proxies cut
 * at 8,000 characters; and no log of a server holds what a student typed.
 */
const SOURCE = placesOf(null, shared("model", "text", "target"));

/** The fields in the address of each screen, in their order there. */
const ON_SCREEN = Object.fromEntries(
  SCREEN_NAMES.map((name) => [name, [...placesOf(name, SCREENS[name].fields), ...EVERYWHERE]]),
);
const ON_ATLAS = placesOf("atlas", atlas.fields);

const PLACES = [...placesOf(null, SHARED), ...Object.values(ON_SCREEN).flat(), ...ON_ATLAS];

/**
 * Every field by its name in the page's address. These names are stable: readers share addresses.
 */
export const BY_ADDRESS = new Map(PLACES.map((place) => [place.field.address, place]));

/**
 * Return a state, or a change of one, with another change made: groups of fields are merged.
 * @template {StateChange} S
 * @param {S} state
 * @param {StateChange} change
 * @returns {S}
 */
export function merge(state, change) {
  /** @type {Record<string, any>} */
  const next = { ...state };
  for (const [name, value] of Object.entries(change)) {
    const isGroup = value !== null && typeof value === "object";
    next[name] = isGroup ? { ...next[name], ...value } : value;
  }
  return /** @type {S} */ (next);
}

/**
 * Return the change that gives one field a value.
 * @type {(place: Place, value: any) => StateChange}
 */
const setting = ({ group, name }, value) =>
  /** @type {any} */ (group ? { [group]: { [name]: value } } : { [name]: value });

/**
 * Return the change that gives fields their initial values.
 * @type {(places: Iterable<Place>) => StateChange}
 */
const initialValues = (places) =>
  [...places].reduce(
    (values, place) => merge(values, setting(place, place.field.initial)),
    /** @type {StateChange} */ ({}),
  );

/** The state before anything is chosen: each screen then starts where it shows the most. */
export const DEFAULTS = /** @type {State} */ (
  merge(
    /** @type {any} */ ({
      run: null,
      screen: "walk",
      // a screen without fields of its own has an empty group
      ...Object.fromEntries(SCREEN_NAMES.map((name) => [name, {}])),
      atlas: { name: null },
    }),
    initialValues(BY_ADDRESS.values()),
  )
);

/** Forget what was chosen in one run: it does not apply to another. */
export const NOTHING_CHOSEN = initialValues(PLACES.filter(({ field }) => field.perRun));

/**
 * Return the state that a path such as /s/r1/walk and its query hold; unknown fields are ignored.
 * @param {string} path
 * @param {string} query
 * @returns {State}
 */
export function parseState(path, query) {
  const [, run, screen] = path.match(/\/s\/([^/]+)(?:\/([^/]+))?/) ?? [];
  const atlasName = path.match(/^\/atlas\/([^/]+)/)?.[1];
  const start = merge(DEFAULTS, {
    run: run ? decodeURIComponent(run) : null,
    screen: knownScreen(screen),
    atlas: { name: atlasName ? decodeURIComponent(atlasName) : null },
  });
  return [...new URLSearchParams(query)].reduce(withField, start);
}

/**
 * Return a screen’s name if there is such a screen, otherwise the first.
 * @type {(name: unknown) => ScreenName}
 */
const knownScreen = (name) => SCREEN_NAMES.find((one) => one === name) ?? DEFAULTS.screen;

/**
 * Return the state with a field of an address; a field that is unknown or not valid changes
 * nothing.
 * @type {(state: State, field: [string, unknown]) => State}
 */
const withField = (state, [address, value]) => {
  const place = BY_ADDRESS.get(address);
  if (!place || value === null) return state;
  if (!place.field.isNumber) return merge(state, setting(place, value));
  const isNumber = value !== "" && Number.isFinite(Number(value));
  return isNumber ? merge(state, setting(place, Number(value))) : state;
};

/**
 * Return the path and query of a state, without the fields at their initial values.
 * @param {State} state
 */
export function statePath(state) {
  // Without a run there is the landing, or the result of the quiz.
  if (!state.run && !state.atlas.name)
    return state.lesson ? `/?card=${encodeURIComponent(state.lesson)}` : "/";
  const query = written(state.atlas.name ? ON_ATLAS : ON_SCREEN[state.screen], state);
  const path = state.atlas.name
    ? `/atlas/${encodeURIComponent(state.atlas.name)}`
    : `/s/${encodeURIComponent(String(state.run))}/${state.screen}`;
  return query.length ? `${path}?${query.join("&")}` : path;
}

/**
 * Return fields as an address holds them, without those at their initial values.
 * @param {Place[]} places
 * @param {State} state
 */
const written = (places, state) =>
  places.flatMap(({ group, name, field }) => {
    const value = /** @type {any} */ (group ? state[group] : state)[name];
    const isWritten = value !== null && value !== field.initial;
    return isWritten ? [`${field.address}=${encodeURIComponent(String(value))}`] : [];
  });

/**
 * Return the whole address of a state: its path and query, and behind the # what makes its
 * sentence.
 * @param {State} state
 */
export function stateAddress(state) {
  const source = state.run && !state.atlas.name ? written(SOURCE, state) : [];
  return statePath(state) + (source.length ? `#${source.join("&")}` : "");
}

/**
 * Return a `listen` of a store: Back and Forward of the browser change the state.
 * @param {() => State} read
 * @returns {StateStore["listen"]}
 */
const listenToHistory = (read) => (changed) => {
  const listener = () => {
    pending.address = null; // it was that of the entry before
    changed(read());
  };
  addEventListener("popstate", listener);
  return () => removeEventListener("popstate", listener);
};

/** Milliseconds between two replacements: browsers refuse an address that changes too often. */
const REPLACE_EVERY = 350;
/** @type {{timer: ReturnType<typeof setTimeout> | undefined, address: string | null}} */
const pending = { timer: undefined, address: null };

/** Write the address that was left waiting, if there is one. */
const replaceNow = () => {
  const { address } = pending;
  pending.address = null;
  try {
    if (address !== null) history.replaceState(null, "", address);
  } catch {
    // a sandboxed frame may not change its address
  }
};

/** Write what changes in a while when the while is over. */
const replaceLater = () => {
  pending.timer = setTimeout(() => {
    pending.timer = undefined;
    if (pending.address === null) return;
    replaceNow();
    replaceLater();
  }, REPLACE_EVERY);
};

/**
 * Add an entry to the browser’s history, or replace the last one: at once, and while it goes on
 * changing every now and then.
 * @type {(step: boolean, address: string) => void}
 */
const writeHistory = (step, address) => {
  if (step) {
    replaceNow();
    return history.pushState(null, "", address);
  }
  pending.address = address;
  if (pending.timer !== undefined) return undefined;
  replaceNow();
  return replaceLater();
};

const readAddress = () =>
  parseState(location.pathname, `${location.search.slice(1)}&${location.hash.slice(1)}`);

/**
 * Keep the state in the page's address. A step adds an entry to the history; a change while
 * dragging replaces it.
 * @type {StateStore}
 */
export const addressStore = {
  read: readAddress,
  write: (state, step) => writeHistory(step, stateAddress(state)),
  listen: listenToHistory(readAddress),
};

/**
 * Keep the state behind the #, for a file opened from disk; inside a sandboxed frame it is kept in
 * memory alone.
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
      if (`#${current}` === location.hash) return void (pending.address = null);
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
 * @param {{run?: string, screen?: string} & Record<string, unknown>} start  the run, the screen,
 *   and fields by their names in an address
 * @returns {StateStore}
 */
export const memoryStore = ({ run, screen, ...fields }) => ({
  read: () =>
    Object.entries(fields).reduce(
      withField,
      merge(DEFAULTS, { run: run ?? null, screen: knownScreen(screen) }),
    ),
  write() {},
  listen: () => () => {},
});
