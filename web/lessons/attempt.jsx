/** One try: a question, a guess, what to do, and what the numbers say about it. */
import { useEffect, useRef, useState } from "preact/hooks";
import { visible } from "../parts/text.js";
import { useFacts } from "./facts.jsx";
import { note, useProgress } from "./progress.js";

/**
 * Return a part of a try, computed if it depends on the answers.
 * @type {(part: any, facts: import("./facts.jsx").Facts) => any}
 */
const resolved = (part, facts) => (typeof part === "function" ? part(facts) : part);

/**
 * A try below its caption.
 * @param {Pick<ScreenProps, "go" | "answers"> & {name: string, attempt: import("./lessons.js").Try,
 *   run: Run, state: State}} props  `name` as in the progress
 */
export function Attempt({ name, attempt, run, state, go, answers }) {
  const facts = useFacts(answers, attempt.needs, run, state);
  const progress = useProgress()[name];
  const guess = progress?.guess ?? -1;
  const choices = facts.isFresh ? resolved(attempt.choices, facts) : [];
  const right = facts.isFresh ? resolved(attempt.right, facts) : -1;
  const now = facts.isFresh && guess >= 0 ? attempt.judge(facts) : null;
  // What was done stays done: the sentence about it must not move what is under the pointer.
  const [done, setDone] = useState(/** @type {typeof now} */ (null));
  const judged = done ?? now;
  const isSolved = judged?.done === true;
  useEffect(() => {
    if (!progress) return;
    if (isSolved) setDone(judged);
    const isRight = progress.isRight ?? (right < 0 ? null : guess === right);
    const solved = progress.solved || isSolved;
    if (isRight !== progress.isRight || solved !== progress.solved) note(name, { isRight, solved });
  }, [right, guess, isSolved]);

  // On a phone the caption scrolls: what is said of a guess comes into view.
  const verdict = useRef(/** @type {HTMLParagraphElement | null} */ (null));
  const shown = useRef(`${guess}/${isSolved}`);
  useEffect(() => {
    if (shown.current !== `${guess}/${isSolved}`)
      verdict.current?.scrollIntoView({ block: "nearest" });
    shown.current = `${guess}/${isSolved}`;
  }, [guess, isSolved]);

  const why = Array.isArray(attempt.why) ? attempt.why[guess] : null;
  const reason = () => why ?? /** @type {any} */ (attempt).why(guess, facts);
  return (
    <div class="attempt" data-try={attempt.name}>
      <p>
        <b>Try:</b> {resolved(attempt.ask, facts)}
        {progress?.solved && !isSolved && <span class="soft"> ✓ solved before</span>}
      </p>
      <div class="guesses" role="group" aria-label="your guess">
        {choices.map((/** @type {string} */ choice, /** @type {number} */ at) => (
          <button
            type="button"
            class="button small"
            aria-pressed={guess === at}
            disabled={isSolved && guess !== at}
            onClick={() => note(name, { guess: at })}
          >
            {visible(choice)}
          </button>
        ))}
      </div>
      {facts.error && <p class="soft">This page cannot check it: {facts.error.message}.</p>}
      <p ref={verdict} class={guess >= 0 ? "verdict guessed" : "verdict"} role="status">
        {judged && !judged.done && (
          <>
            {resolved(attempt.task, facts)}{" "}
            {attempt.at && !isAt(state, attempt.at) && (
              <button
                type="button"
                class="button small"
                onClick={() => go(/** @type {StateChange} */ (attempt.at))}
              >
                go there
              </button>
            )}{" "}
            <span class="soft">Not yet: {judged.say}</span>
          </>
        )}
        {judged?.done && (
          <>
            <b class="done">✓ Yes:</b> {judged.say}{" "}
            {guess === right || right < 0 ? (
              <b>You guessed it.</b>
            ) : (
              <>
                You guessed “{visible(choices[guess] ?? "")}”. {reason()}
              </>
            )}
          </>
        )}
      </p>
    </div>
  );
}

/**
 * Return whether the page is where a try is done: on that screen, at that step.
 * @type {(state: State, at: StateChange) => boolean}
 */
const isAt = (state, at) =>
  state.screen === at.screen &&
  (at.layer === undefined || state.layer === at.layer) &&
  (!at.walk || state.walk.step === at.walk.step);
