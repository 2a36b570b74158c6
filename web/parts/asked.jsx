/**
 * What can be asked of a score, why it is what it is, and of a head, which words follow: the
 * buttons, the keys, and the panel that answers.
 */
import { useEffect, useRef } from "preact/hooks";
import { Follows } from "./follows.jsx";
import { useKeys } from "./hooks.js";
import { Why } from "./why.jsx";

/**
 * @typedef {"why" | "follows"} Question
 * @typedef {{name: string, j: number, isHidden: boolean}} AskedKey  a key by its word and its
 *   position, and whether the mask hides it
 */

/** The id of the panel, which buttons name as what they open. */
const PANEL = "telescope-asked";

/** Each question: its key, and what it asks. @type {Record<Question, {key: string, asks: string}>} */
const QUESTIONS = {
  why: { key: "w", asks: "who wrote what this score is made of" },
  follows: { key: "f", asks: "which words this head pushes up and down" },
};

/**
 * Return whether who wrote what can be asked: a worked example has no model, and a saved file no
 * answer.
 * @param {Run} run
 * @param {Transport} transport
 */
export const canAsk = (run, transport) => run.kind !== "example" && transport.canRun;

/**
 * A button that opens the panel of a question, or closes it.
 * @param {{question: Question, open: boolean, toggle: () => void, children: any, label?: string}}
 *   props
 */
export const Ask = ({ question, open, toggle, children, label }) => (
  <button
    type="button"
    class="button small ask"
    aria-expanded={open}
    aria-controls={open ? PANEL : undefined}
    aria-label={label}
    title={`${QUESTIONS[question].asks}: ${QUESTIONS[question].key}`}
    onClick={toggle}
  >
    {children}
  </button>
);

/**
 * Open and close the panel by its keys, where it can be asked; Escape closes it.
 * @param {HTMLElement} root
 * @param {State} state
 * @param {Go} go
 * @param {boolean} able
 */
export const useAskKeys = (root, state, go, able) =>
  useKeys(root, ({ key }) => {
    const names = /** @type {Question[]} */ (Object.keys(QUESTIONS));
    const question = able && names.find((name) => QUESTIONS[name].key === key);
    if (question) go({ asked: state.asked === question ? null : question });
    else if (key === "Escape" && state.asked) go({ asked: null });
    else return false;
    return true;
  });

/**
 * The panel that answers the question of the state, if there is one.
 * @param {{run: Run, attention: Attention, h: number, i: number, query: string, keys: AskedKey[],
 *   at: number, state: State, go: Go, goToHead: (place: {l: number, h: number, i: number}) => void,
 *   answers: import("../answers.js").Answers, theme: Theme}} props  `query` is its word on the
 *   screen, `at` the place of the chosen key among `keys`, which may be empty
 */
export function Asked({ state, go, goToHead, query, keys, at, ...rest }) {
  const panel = useRef(/** @type {HTMLElement | null} */ (null));
  const heading = useRef(/** @type {HTMLHeadingElement | null} */ (null));

  // A panel that a reader opens comes into view; one that a link opens leaves the page as it is.
  const before = useRef(state.asked);
  useEffect(() => {
    if (before.current !== state.asked) panel.current?.scrollIntoView({ block: "nearest" });
    before.current = state.asked;
  }, [state.asked]);

  const { asked } = state;
  const key = keys[at];
  if (asked !== "follows" && !(asked === "why" && key)) return null;
  const others = keys.filter((one) => one !== key && !one.isHidden);
  // The button of the head is gone when the new head is shown: its heading takes the focus.
  /** @param {{l: number, h: number, i: number}} place */
  const follow = (place) => {
    goToHead(place);
    heading.current?.focus({ preventScroll: true });
  };
  return (
    <section class="asked card" id={PANEL} ref={panel} aria-label={QUESTIONS[asked].asks}>
      <button
        type="button"
        class="button square close"
        aria-label="close"
        title="close: Escape"
        onClick={() => go({ asked: null })}
      >
        ×
      </button>
      {asked === "why" ? (
        <Why
          {...rest}
          query={query}
          chosen={key}
          than={others.find(({ j }) => j === state.than) ?? null}
          others={others}
          compare={(j) => go({ than: j }, false)}
          heading={heading}
          goToHead={follow}
          edited={Boolean(state.edits)}
        />
      ) : (
        <Follows {...rest} heading={heading} edited={Boolean(state.edits)} />
      )}
    </section>
  );
}
