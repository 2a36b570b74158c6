/** The lessons: what each consists of, and how the run and the state of a caption are opened. */
import { DEFAULTS, NOTHING_CHOSEN, merge, statePath } from "../state/state.js";
import { BY_HAND } from "./by_hand.jsx";
import { BY_MODEL } from "./by_model.jsx";

/**
 * An example, or a text for a model.
 * @typedef {{example: string} | {text: string, kind: "translator" | "gpt"}} RunSource
 * @typedef {import("./facts.jsx").Facts} Facts
 * @typedef {string | import("preact").VNode<any>} Prose
 */

/**
 * Something to try, which asks for a guess first. `name` is a part of what a student hands in, and
 * stable; `about` is what the list of all tries says. `right` is the place of the right choice, or −1 while it cannot be told; `why` is what
 * speaks against a wrong one. `judge` tells from the answers that it `needs` whether the try was
 * done, and in either case what the numbers are. `at` is where it is done, if not where the caption
 * is.
 * @typedef {{name: string, about: string, ask: Prose | ((facts: Facts) => Prose), choices: string[] | ((facts: Facts)
 *   => string[]), right: number | ((facts: Facts) => number), why: string[] | ((guess: number,
 *   facts: Facts) => string), task: Prose | ((facts: Facts) => Prose), at?: StateChange, needs:
 *   import("./facts.jsx").Needs, judge: (facts: Facts) => {done: boolean, say: string}}} Try
 */

/**
 * What is said, and the state of the screens that shows it; `run` where it differs from the
 * lesson's. Numbers in what is said are computed from the answers that it `needs`. `word` is the
 * query that is followed in a text, and `pair` two words, in which the heads that are shown differ
 * most. `below` is what stands between the caption and the screen. `takesSentences` keeps the
 * caption when a student runs another sentence.
 * @typedef {{say: Prose | ((facts: Facts) => Prose), needs?: import("./facts.jsx").Needs, at:
 *   StateChange, run?: RunSource, word?: string, pair?: string, attempt?: Try, below?: (props: any)
 *   => any, takesSentences?: boolean}} Caption
 */

/**
 * A card of the landing: a sequence of captions.
 * @typedef {{name: string, title: string, teaser: string, run: RunSource, captions: Caption[]}}
 *   Lesson
 */

/** All lessons, in the order of their cards. @type {Lesson[]} */
export const LESSONS = [...BY_HAND, ...BY_MODEL];

/**
 * All tries, in the order of a student's code: where each stands, and its name in the progress.
 * @type {{name: string, attempt: Try, lesson: Lesson, caption: number}[]}
 */
export const TRIES = LESSONS.flatMap((lesson) =>
  lesson.captions.flatMap(({ attempt }, caption) =>
    attempt ? [{ name: `${lesson.name}/${attempt.name}`, attempt, lesson, caption }] : [],
  ),
);

/** The place of the quiz's result in `state.lesson`, beside the names of the lessons. */
export const QUIZ = "quiz";

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
 * Return the state of a lesson's caption with its run, which is made if it is not there; throw an
 * error with one sentence if it cannot be.
 * @param {Lesson} lesson
 * @param {number} caption
 * @param {Transport} transport
 * @param {import("../answers.js").Answers} answers
 * @param {Run | null} [run]  the run that is open: an example whose numbers were changed stays so
 * @returns {Promise<StateChange>}
 */
export async function openCaption(lesson, caption, transport, answers, run = null) {
  const { word, pair, run: own } = lesson.captions[caption];
  const source = own ?? lesson.run;
  const same = "example" in source && run?.example?.name === source.example;
  const opened = same ? run.run : await makeRun(source, transport, answers);
  const state = { ...captionState(lesson, caption), run: opened };
  if (!word || !pair) return state;
  try {
    const query = { l: 0, word, between: pair };
    const found = await answers.ask(`runs/${opened}/readings`, query).promise;
    return merge(state, { query: found.i, ...headsOf(found) });
  } catch {
    // a model of another language has neither the words nor the heads: the screen chooses
    return state;
  }
}

/**
 * Return the state that shows the two heads that differ most in some words, and the first of them
 * where one head is shown.
 * @param {ReadingsAnswer} found
 * @returns {StateChange}
 */
function headsOf({ heads, pair }) {
  if (!pair) return {};
  const [a, b] = pair.map((at) => heads[at]);
  return {
    layer: a.l,
    head: a.h,
    heads: { layerA: a.l, headA: a.h, layerB: b.l, headB: b.h },
  };
}

/**
 * Return the change of the lesson when a student runs a sentence of their own: it is left, unless
 * its caption asks for one.
 * @type {(state: State) => StateChange}
 */
export const afterSentence = ({ lesson, caption }) =>
  findLesson(lesson)?.captions[caption ?? 0]?.takesSentences ? {} : { lesson: null, caption: null };

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
