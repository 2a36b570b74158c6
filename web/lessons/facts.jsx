/** What captions and tries are computed from: answers about the run that is shown. */
import { useEffect, useState } from "preact/hooks";
import { useAnswers } from "../answers.js";
import { toNumber } from "../parts/numbers.js";

/**
 * What is known of the page: the run, the state, and the answers that a lesson needs, each null
 * until it arrives.
 * @typedef {{run: Run, state: State, isFresh: boolean, error: Error | null} & Record<string, any>}
 *   Facts
 */

/**
 * The requests of a caption or a try by the names of their answers. `known` holds those that have
 * arrived, since one may depend on another: its path is undefined until then, and null where it is
 * not needed.
 * @typedef {(place: {run: Run, state: State, known: Record<string, any>}) => Record<string,
 *   import("../answers.js").Request>} Needs
 */

/** @type {Needs} */
const NOTHING = () => ({});

/**
 * Return the answers that a caption or a try needs.
 * @param {import("../answers.js").Answers} answers
 * @param {Needs | undefined} needs
 * @param {Run} run
 * @param {State} state
 * @returns {Facts}
 */
export function useFacts(answers, needs, run, state) {
  const [known, setKnown] = useState(/** @type {Record<string, any>} */ ({}));
  const requests = (needs ?? NOTHING)({ run, state, known });
  const names = Object.keys(requests);
  const found = useAnswers(
    answers,
    names.map((name) => requests[name]),
  );
  const values = Object.fromEntries(
    names.map((name, at) => [name, requests[name].path ? found[at].value : null]),
  );
  useEffect(
    () => setKnown(Object.fromEntries(Object.entries(values).filter(([, value]) => value))),
    found.map(({ value }) => value),
  );
  /** @type {(name: string, at: number) => boolean} */
  const isThere = (name, at) => Boolean(found[at].fresh && found[at].value);
  return {
    ...values,
    run,
    state,
    isFresh: names.every((name, at) => requests[name].path === null || isThere(name, at)),
    error: found.find(({ error }) => error)?.error ?? null,
  };
}

/**
 * A number of a caption; until its answer arrives, the room that it will take.
 * @param {{children: string | null | undefined}} props
 */
export const Figure = ({ children }) =>
  children ? <span class="figure">{children}</span> : <span class="figure pending">0.0000</span>;

/**
 * Return the numbers of a step of a trace, or undefined where it is not there yet.
 * @type {(trace: Trace | null | undefined, name: string) => number[] | undefined}
 */
export const stepOf = (trace, name) =>
  trace?.steps.find((step) => step.name === name)?.numbers.map(toNumber);

/**
 * Return the numbers of an input of a worked example.
 * @type {(run: Run | null | undefined, name: string) => number[][]}
 */
export const inputOf = (run, name) =>
  run?.example?.inputs.find((one) => one.name === name)?.numbers ?? [];
