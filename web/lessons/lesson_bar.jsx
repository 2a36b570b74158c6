/** The caption of a card above its screen, with Back and Next, and what to try there. */
import { useRef, useState } from "preact/hooks";
import { useKeys } from "../parts/hooks.js";
import { Attempt } from "./attempt.jsx";
import { useFacts } from "./facts.jsx";
import { findLesson, LESSONS, openCaption, QUIZ } from "./lessons.js";

/**
 * @typedef {Pick<ScreenProps, "go" | "answers" | "transport" | "root"> & {state: State, run: Run |
 *   null}} Props
 */

/**
 * Return which way a key of a presenter turns the captions; Space presses a focused button.
 * @param {KeyboardEvent} event
 */
function turned({ key, shiftKey, target }) {
  if (key === "PageDown") return 1;
  if (key === "PageUp") return -1;
  const onControl = /** @type {Element} */ (target).closest("button, a, summary, [role=button]");
  return key === " " && !onControl ? (shiftKey ? -1 : 1) : 0;
}

/**
 * Return the lesson of a state, and the number of its caption.
 * @param {State} state
 */
function shownCaption(state) {
  const lesson = findLesson(state.lesson);
  const last = (lesson?.captions.length ?? 1) - 1;
  return { lesson, last, at: Math.min(Math.max(0, state.caption ?? 0), last) };
}

/**
 * Return the run, or the last one of the same caption while another is loaded.
 * @type {(run: Run | null, caption: string) => Run | null}
 */
function useLastRun(run, caption) {
  const last = useRef({ run, caption });
  if (run || last.current.caption !== caption) last.current = { run, caption };
  return last.current.run;
}

/** The caption that is being read, above the screen that it speaks of. @param {Props} props */
export function LessonBar({ state, run: loaded, go, answers, transport, root }) {
  // A changed number makes a new run: until it has arrived the caption stands as it is.
  const run = useLastRun(loaded, `${state.lesson}/${state.caption}`);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  const { lesson, at, last } = shownCaption(state);
  /** @type {(to: import("./lessons.js").Lesson, caption: number) => Promise<void>} */
  const turn = async (to, caption) => {
    setBusy(true);
    setProblem(null);
    try {
      const kept = to === lesson ? run : null; // another lesson begins with its own numbers
      go(await openCaption(to, caption, transport, answers, kept));
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
    setBusy(false);
  };
  useKeys(root, (event) => {
    const way = lesson && state.presenting ? turned(event) : 0;
    if (way && lesson?.captions[at + way] && !busy) turn(lesson, at + way);
    return way !== 0;
  });
  if (!lesson) return null;
  const next = LESSONS[LESSONS.indexOf(lesson) + 1];
  const { attempt } = lesson.captions[at];
  /** @type {(label: any, onClick: () => void, strong?: boolean, off?: boolean) => any} */
  const button = (label, onClick, strong = false, off = false) => (
    <button
      type="button"
      class={strong ? "button strong" : "button"}
      disabled={busy || off}
      onClick={onClick}
    >
      {label}
    </button>
  );
  return (
    <section class="lesson" aria-label={`lesson: ${lesson.title}`}>
      <div class="inside">
        <div class="said-by">
          <b>{lesson.title}</b>
          <span
            class="dots"
            role="img"
            aria-label={`caption ${at + 1} of ${lesson.captions.length}`}
          >
            {lesson.captions.map((_, place) => (
              <i class={place === at ? "here" : ""} />
            ))}
          </span>
        </div>
        <div class="caption">
          <div aria-live="polite">
            <Said key={`${lesson.name}/${at}`} {...{ state, run, answers }} />
          </div>
          {attempt && run && (
            <Attempt
              key={`${lesson.name}/${attempt.name}`}
              name={`${lesson.name}/${attempt.name}`}
              {...{ attempt, run, state, go, answers }}
            />
          )}
          {problem && <p role="alert">{problem}</p>}
        </div>
        <div class="turns">
          {button("Back", () => turn(lesson, at - 1), false, at === 0)}
          {at < last && button(busy ? "…" : "Next", () => turn(lesson, at + 1), true)}
          {at === last &&
            button("All lessons", () => go({ run: null, lesson: null, caption: null }))}
          {at === last &&
            (next
              ? button(
                  <>
                    next lesson<span class="of-next">: {next.title}</span>
                  </>,
                  () => turn(next, 0),
                  true,
                )
              : button("your result", () => go({ run: null, lesson: QUIZ, caption: null }), true))}
          <button
            type="button"
            class="button square"
            aria-label="close the lesson"
            title="close the lesson"
            onClick={() => go({ lesson: null, caption: null }, false)}
          >
            ×
          </button>
        </div>
      </div>
    </section>
  );
}

/**
 * What a caption says, with its numbers as far as they have arrived.
 * @param {Omit<Props, "go" | "transport" | "root">} props
 */
function Said({ state, run, answers }) {
  const { lesson, at } = shownCaption(state);
  const caption = lesson?.captions[at];
  const facts = useFacts(
    answers,
    run ? caption?.needs : undefined,
    /** @type {Run} */ (run),
    state,
  );
  return <p>{typeof caption?.say === "function" ? caption.say(facts) : caption?.say}</p>;
}

/**
 * What a caption shows between itself and the screen, if anything.
 * @param {Props & {theme: Theme}} props
 */
export function BelowCaption(props) {
  const { lesson, at } = shownCaption(props.state);
  const Below = lesson?.captions[at].below;
  return Below && props.run ? <Below {...props} run={props.run} /> : null;
}
