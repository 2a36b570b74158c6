/**
 * How far a student is with the tries: kept by the browser where it keeps things, in memory
 * otherwise.
 */
import { useEffect, useState } from "preact/hooks";

const KEY = "telescope.tries";

/**
 * What is known of one try: the guess, whether the first guess was right (null until it can be
 * told), and whether it was done.
 * @typedef {{guess: number, isRight: boolean | null, solved: boolean}} Progress
 * @typedef {Record<string, Progress>} AllProgress  by lesson and try: "journey/opposite"
 */

/** The browser's own store; null in a notebook or a frame that may keep nothing. */
const store = (() => {
  try {
    return globalThis.localStorage ?? null;
  } catch {
    return null;
  }
})();

/** @type {AllProgress} */
let all = read();

/** Those who are told of a change. @type {Set<() => void>} */
const listeners = new Set();

/**
 * Return what was kept; what another program or a student wrote there instead counts as nothing.
 * @returns {AllProgress}
 */
function read() {
  try {
    const kept = JSON.parse(store?.getItem(KEY) ?? "{}");
    const isWhole = (/** @type {any} */ one) =>
      Number.isInteger(one?.guess) &&
      [true, false, null].includes(one.isRight) &&
      typeof one.solved === "boolean";
    return Object.fromEntries(Object.entries(kept ?? {}).filter(([, one]) => isWhole(one)));
  } catch {
    return {};
  }
}

/** @param {AllProgress} next */
function write(next) {
  all = next;
  try {
    store?.setItem(KEY, JSON.stringify(all));
  } catch {
    // a full or forbidden store: this page still knows
  }
  listeners.forEach((tell) => tell());
}

/**
 * Note a guess, and with it what is known of the try. Whether the first guess was right stays.
 * @type {(name: string, change: Partial<Progress>) => void}
 */
export const note = (name, change) => {
  const known = all[name] ?? { guess: -1, isRight: null, solved: false };
  write({ ...all, [name]: { ...known, ...change } });
};

/** Forget everything: the next student begins. */
export const forget = () => write({});

/** Return all progress, and render again when it changes, here or in another tab. */
export function useProgress() {
  const [, render] = useState(0);
  useEffect(() => {
    const tell = () => render((n) => n + 1);
    const fromOutside = (/** @type {StorageEvent} */ event) => {
      if (event.key !== KEY && event.key !== null) return;
      all = read();
      tell();
    };
    listeners.add(tell);
    addEventListener("storage", fromOutside);
    return () => {
      listeners.delete(tell);
      removeEventListener("storage", fromOutside);
    };
  }, []);
  return all;
}
