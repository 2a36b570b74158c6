/**
 * The caption of a card above its screen, with Back and Next; after the last caption, one thing to
 * try.
 */
import { useState } from "preact/hooks";
import { useKeys } from "../parts/hooks.js";
import { captionState, findLesson, makeRun } from "./lessons.js";

/** Return which way a key of a presenter turns the captions; Space presses a focused button. */
const turned = (/** @type {KeyboardEvent} */ { key, shiftKey, target }) => {
  if (key === "PageDown") return 1;
  if (key === "PageUp") return -1;
  const onControl = /** @type {Element} */ (target).closest("button, a, summary, [role=button]");
  return key === " " && !onControl ? (shiftKey ? -1 : 1) : 0;
};

/**
 * The caption that is being read, above the screen that it speaks of.
 * @param {Pick<ScreenProps, "go" | "answers" | "transport" | "root"> & {state: State, run: Run |
 *   null}} props
 */
export function LessonBar({ state, run, go, answers, transport, root }) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  const lesson = findLesson(state.lesson);
  const count = lesson?.captions.length ?? 0;
  const at = Math.min(Math.max(0, state.caption ?? 0), count - 1);
  const last = at === count - 1;
  /** @param {number} next */
  const turn = async (next) => {
    const chosen = lesson?.captions[next];
    if (!lesson || !chosen || busy) return;
    const source = chosen.run ?? lesson.run;
    setBusy(true);
    setProblem(null);
    try {
      // an example whose numbers the reader has changed stays changed
      const same = "example" in source && run?.example?.name === source.example;
      go({
        ...captionState(lesson, next),
        run: same ? run.run : await makeRun(source, transport, answers),
      });
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
    setBusy(false);
  };
  useKeys(root, (event) => {
    const way = lesson && state.presenting ? turned(event) : 0;
    if (way) turn(at + way);
    return way !== 0;
  });
  if (!lesson) return null;
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
        <div class="caption" aria-live="polite">
          <p>{lesson.captions[at].say}</p>
          {last && (
            <p class="attempt">
              <b>Try:</b> {lesson.attempt}
            </p>
          )}
          {problem && <p role="alert">{problem}</p>}
        </div>
        <div class="turns">
          <button
            type="button"
            class="button"
            disabled={at === 0 || busy}
            onClick={() => turn(at - 1)}
          >
            Back
          </button>
          {last ? (
            <button
              type="button"
              class="button strong"
              onClick={() => go({ run: null, lesson: null, caption: null })}
            >
              All lessons
            </button>
          ) : (
            <button
              type="button"
              class="button strong"
              disabled={busy}
              onClick={() => turn(at + 1)}
            >
              {busy ? "…" : "Next"}
            </button>
          )}
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
