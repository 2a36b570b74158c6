/** Open the run of a lesson: a worked example, or a text that a model reads. */
import { NOTHING_CHOSEN, merge } from "../state/state.js";

/**
 * Return the name of a run, made by the server if it is a text; throw an error with one sentence if
 * no model fits.
 * @param {import("./lessons.jsx").RunSource} source
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
 * @param {import("./lessons.jsx").Lesson} lesson
 * @param {number} caption
 */
export const captionState = (lesson, caption) => ({
  ...merge(BEFORE_CAPTION, lesson.captions[caption].at),
  lesson: lesson.name,
  caption,
});
