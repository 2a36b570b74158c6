/** Open the run of a card: a worked example, or a text that a model reads. */
import { DEFAULTS } from "../state.js";

/** What is chosen on the screen of sources. */
const SPAN = ["first", "end", "low", "high", "hide"];

/** What was chosen in one run does not apply to another. @type {Partial<State>} */
export const NOTHING_CHOSEN = Object.fromEntries(
  ["l", "h", "i", "j", "word", "x", "y", "z", "la", "a", "lb", "b", "kind", "edits", ...SPAN].map(
    (name) => [name, /** @type {any} */ (DEFAULTS)[name]],
  ),
);

/**
 * Return the name of a run, made by the server if it is a text; throw an error with one sentence if no model fits.
 * @param {import("./lessons.jsx").RunSource} source
 * @param {Transport} transport
 * @param {import("../answers.js").Answers} answers
 * @returns {Promise<string>}
 */
export async function openRun(source, transport, answers) {
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

/**
 * Return the state of a caption of a card, without the run.
 * @param {import("./lessons.jsx").Lesson} lesson
 * @param {number} at
 * @returns {Partial<State>}
 */
export const captionState = (lesson, at) => ({
  ...NOTHING_CHOSEN,
  ...{ step: "softmax", of: "mean", temperature: 1 },
  ...lesson.captions[at].at,
  card: lesson.name,
  at,
});
