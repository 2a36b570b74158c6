/** What can be asked of the two heads: a key to choose, and a button for each question. */
import { Ask } from "../../parts/asked.jsx";
import { argmax } from "../../parts/numbers.js";
import { clipped } from "../../parts/text.js";

/**
 * @typedef {{name: string, weight: number, members: number[]}} KeyChoice  a word, its weight, and
 *   the positions of its pieces
 * @typedef {{state: State, go: Go}} Asking
 * @typedef {"a" | "b"} HeadSide
 */

/** The two heads, by their letters. @type {HeadSide[]} */
export const HEAD_SIDES = ["a", "b"];

/**
 * Return which of the keys is chosen, by its place: the one in the state, or the one with the
 * largest weight.
 * @param {KeyChoice[]} keys
 * @param {State} state
 */
export function chosenKey(keys, state) {
  const found = keys.findIndex(({ members }) => members.includes(Number(state.key ?? -1)));
  return found < 0 ? argmax(keys.map(({ weight }) => weight)) : found;
}

/**
 * Return the keys as the panel takes them: of a word in several pieces the one in the state, or the
 * last. None, where their positions are not known.
 * @param {KeyChoice[] | undefined} keys
 * @param {State} state
 * @returns {import("../../parts/asked.jsx").AskedKey[]}
 */
export const askedKeys = (keys, state) =>
  keys?.every(({ members }) => members.length)
    ? keys.map(({ name, weight, members }) => ({
        name,
        j: members.find((one) => one === state.key) ?? members[members.length - 1],
        isHidden: weight === 0,
      }))
    : [];

/**
 * The key and the questions below one head.
 * @param {Asking & {side: HeadSide, name: string, keys: KeyChoice[]}} props
 */
export function AskRow({ state, go, side, name, keys }) {
  if (!askedKeys(keys, state).length) return null;
  const at = chosenKey(keys, state);
  /** @param {"why" | "follows"} question */
  const asking = (question) => {
    const open = state.asked === question && state.heads.side === side;
    return {
      question,
      open,
      toggle: () => go({ asked: open ? null : question, heads: { side } }),
    };
  };
  return (
    <div class="row ask-row">
      <label class="labelled">
        key{" "}
        <select
          aria-label={`${name}: key`}
          value={String(at)}
          onChange={(event) =>
            go({ key: keys[Number(event.currentTarget.value)].members.at(-1) ?? null }, false)
          }
        >
          {keys.map((one, place) => (
            <option value={String(place)} selected={place === at}>
              {clipped(one.name, 16)}
            </option>
          ))}
        </select>
      </label>
      <Ask {...asking("why")} label={`${name}: why this score?`}>
        why?
      </Ask>
      <Ask {...asking("follows")} label={`${name}: what follows?`}>
        what follows?
      </Ask>
    </div>
  );
}
