/** The lessons: what each consists of, and how the run and the state of a caption are opened. */
import { DEFAULTS, NOTHING_CHOSEN, merge, statePath } from "../state/state.js";
import { BY_HAND } from "./by_hand.jsx";
import { BY_MODEL } from "./by_model.jsx";

/**
 * An example, or a text for a model.
 * @typedef {{example: string} | {text: string, kind: "translator" | "gpt"}} RunSource
 */

/**
 * What is said, and the state of the screens that shows it; `run` where it differs from the
 * lesson's.
 * @typedef {{say: any, at: StateChange, run?: RunSource}} Caption
 */

/**
 * A card of the landing: a sequence of captions, and one thing to try at the end.
 * @typedef {{name: string, title: string, teaser: string, run: RunSource, captions: Caption[],
 *   attempt: any}} Lesson
 */

/** All lessons, in the order of their cards. */
export const LESSONS = [...BY_HAND, ...BY_MODEL];

/** @param {string | null} name */
export const findLesson = (name) => LESSONS.find((lesson) => lesson.name === name);

/**
 * Return the name of a run, made by the server if it is a text; throw an error with one sentence if
 * no model fits.
 * @param {RunSource} source
 * @param {Transport} transport
 * @param {import("../answers.js").Answers} answers
 * @returns {Promise<string>}
 */
export async function makeRun(source, transport, answers) {
  if ("example" in source) return `example-${source.example}`;
  const models = await answers.ask("models").promise;
  const model = models.models.find(
    (/** @type {string} */ name) => models.kinds?.[name] === source.kind,
  );
  if (!model)
    throw new Error(
      `no ${source.kind === "gpt" ? "GPT" : "translator"} is here: telescope serve --model FOLDER`,
    );
  const made = await transport.send?.("runs", { text: source.text, model });
  return made.run;
}

/** What a caption starts from: what the reader changed before, on these screens, is undone. */
const BEFORE_CAPTION = merge(NOTHING_CHOSEN, {
  walk: { step: "softmax" },
  alignment: { weightsOf: "mean" },
  output: { temperature: 1 },
});

/**
 * Return the state of a lesson's caption, without the run.
 * @param {Lesson} lesson
 * @param {number} caption
 */
export const captionState = (lesson, caption) => ({
  ...merge(BEFORE_CAPTION, lesson.captions[caption].at),
  lesson: lesson.name,
  caption,
});

/**
 * Return the path of a lesson's first caption; `run` is that of its text, if it begins with one.
 * @param {string} name
 * @param {string} run
 */
export function lessonPath(name, run) {
  const lesson = /** @type {Lesson} */ (findLesson(name));
  const source = lesson.captions[0].run ?? lesson.run;
  const opened = "example" in source ? `example-${source.example}` : run;
  return statePath(merge(DEFAULTS, { ...captionState(lesson, 0), run: opened }));
}
