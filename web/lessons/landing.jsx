/** The first page: eight cards, a field for a sentence, and the recordings that are open. */
import { useState } from "preact/hooks";
import { useAnswer } from "../answers.js";
import { isTooLong, LengthNote } from "../parts/length_note.jsx";
import { clipped, visible } from "../parts/text.js";
import { NOTHING_CHOSEN } from "../state/state.js";
import { Commands } from "./handout.jsx";
import { LESSONS, openCaption, QUIZ } from "./lessons.js";
import { useProgress } from "./progress.js";
import { Quiz, solvedOf } from "./quiz.jsx";

/**
 * Cards of lessons, and every other way in: a sentence, a recording, an atlas, an example.
 * @param {Pick<ScreenProps, "go" | "openRun" | "answers" | "transport"> & {state: State, runs:
 *   Run[], onSent: () => void}} props
 */
export function Landing({ state, go, openRun, answers, transport, runs, onSent }) {
  const progress = useProgress();
  const { value: models } = useAnswer(answers, "models");
  const { value: opened } = useAnswer(answers, transport.canRun ? "atlases" : null);
  /** @type {AtlasAnswer[]} */
  const atlases = opened?.atlases ?? [];
  const [busy, setBusy] = useState(/** @type {string | null} */ (null));
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  const kinds = new Set(Object.values(models?.kinds ?? {}));
  /** @type {(what: string, open: () => Promise<StateChange>) => Promise<void>} */
  const opening = async (what, open) => {
    setBusy(what);
    setProblem(null);
    try {
      const state = await open();
      onSent();
      go(state);
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
    setBusy(null);
  };
  /** @type {(lesson: import("./lessons.js").Lesson, caption?: number) => Promise<void>} */
  const start = (lesson, caption = 0) =>
    opening(lesson.name, () => openCaption(lesson, caption, transport, answers));
  /** @param {import("./lessons.js").Lesson} lesson */
  const lacks = (lesson) =>
    "kind" in lesson.run &&
    models &&
    // a handout holds what its own lesson asks of a model
    (!kinds.has(lesson.run.kind) ||
      (transport.handout && transport.handout.lesson !== lesson.name));
  if (state.lesson === QUIZ)
    return (
      <>
        {problem && (
          <p class="failure" role="alert">
            {problem}
          </p>
        )}
        <Quiz
          open={start}
          lacks={lacks}
          busy={busy !== null}
          close={() => go({ lesson: null, caption: null })}
        />
      </>
    );
  const all = solvedOf(progress);
  const recordings = runs.filter((run) => run.kind === "recording");
  return (
    <div class="landing">
      <h2>Look inside attention</h2>
      <p class="lede">
        Eight short lessons, each with numbers that you can change. Or see what a model does with
        your own sentence.
      </p>
      {problem && (
        <p class="failure" role="alert">
          {problem}
        </p>
      )}
      <ol class="cards">
        {LESSONS.map((lesson, at) => (
          <li>
            <button
              type="button"
              class="lesson-card"
              disabled={lacks(lesson) || busy !== null}
              aria-busy={busy === lesson.name}
              onClick={() => start(lesson)}
            >
              {DRAWINGS[lesson.name]}
              <span class="words-of">
                <b>
                  {at + 1}. {lesson.title}
                </b>
                <span class="soft">
                  {lacks(lesson)
                    ? "needs a model that is not here"
                    : busy === lesson.name
                      ? "opening…"
                      : lesson.teaser}
                </span>
                <SolvedMark {...solvedOf(progress, lesson.name)} />
              </span>
            </button>
          </li>
        ))}
      </ol>
      <p class="row quiz-entry">
        <button type="button" class="button" onClick={() => go({ lesson: QUIZ, caption: null })}>
          Quiz: what did you understand?
        </button>
        <span class="soft">
          {all.solved} of {all.of} tries solved; the result can be handed in
        </span>
      </p>
      <div class="below">
        <section class="card">
          <h3>Your own sentence</h3>
          {transport.handout ? (
            <p class="soft">
              A handout runs no model: <Commands commands={transport.handout.commands} />.
            </p>
          ) : models && !models.default ? (
            <p class="soft">
              No model is here: start the page with <code>telescope serve --model FOLDER</code>.
            </p>
          ) : (
            <OwnSentence models={models} opening={opening} transport={transport} busy={busy} />
          )}
        </section>
        <section class="card">
          <h3>A recording of a model</h3>
          {recordings.length ? (
            <ul class="recordings">
              {recordings.map((run) => (
                <li>
                  <button
                    type="button"
                    class="button"
                    onClick={() => openRun(run.run, { screen: "heads" })}
                  >
                    {clipped(run.title, 40)}
                  </button>{" "}
                  <span class="soft">{run.model}</span>
                </li>
              ))}
            </ul>
          ) : (
            <>
              <p class="soft">Watch any model, then open what was recorded:</p>
              <pre class="figures">{`telescope watch --model MODEL --text FILE --out run.telescope
telescope serve run.telescope`}</pre>
            </>
          )}
        </section>
        {atlases.length > 0 && (
          <section class="card">
            <h3>An atlas of heads</h3>
            <ul class="recordings">
              {atlases.map((one) => (
                <li>
                  <button
                    type="button"
                    class="button"
                    onClick={() => go({ ...NOTHING_CHOSEN, atlas: { name: one.atlas } })}
                  >
                    {clipped(one.atlas, 40)}
                  </button>{" "}
                  <span class="soft">{one.model}</span>
                </li>
              ))}
            </ul>
          </section>
        )}
        <section class="card">
          <h3>More worked examples</h3>
          <ul class="recordings">
            {MORE_EXAMPLES.map((one) => (
              <li>
                <button
                  type="button"
                  class="button"
                  onClick={() =>
                    openRun(`example-${one.name}`, {
                      screen: one.screen,
                      walk: { step: "softmax" },
                    })
                  }
                >
                  {one.title}
                </button>{" "}
                <span class="soft">{one.teaser}</span>
              </li>
            ))}
            {models?.default && (
              <li>
                <button
                  type="button"
                  class="button"
                  disabled={busy !== null}
                  onClick={() =>
                    opening("sources", async () => {
                      const made = await transport.send?.("runs", sourcesExample(models));
                      return { ...NOTHING_CHOSEN, run: made.run, screen: "sources" };
                    })
                  }
                >
                  Sources
                </button>{" "}
                <span class="soft">
                  which words an answer comes from: five ways, and which to trust
                </span>
              </li>
            )}
          </ul>
        </section>
      </div>
    </div>
  );
}

/** How many tries of a card are solved. @param {{solved: number, of: number}} props */
const SolvedMark = ({ solved, of }) => (
  <small class={solved === of ? "done" : "soft"}>
    {solved === of ? "✓ " : ""}
    {solved} of {of} tries solved
  </small>
);

/**
 * Return the text of which Sources are shown, and the model that reads it: a translator, if there
 * is one.
 * @param {any} models
 */
function sourcesExample(models) {
  /** @type {string[]} */
  const names = models.models;
  const translator = names.find((name) => models.kinds?.[name] === "translator");
  const model = translator ?? models.default;
  return { text: EXAMPLE_TEXTS[models.kinds?.[model]] ?? "Good morning.", model };
}

/**
 * A field for a sentence; an empty one runs an example that suits the model.
 * @param {{models: any, opening: (what: string, open: () => Promise<StateChange>) => Promise<void>,
 *   transport: Transport, busy: string | null}} props
 */
function OwnSentence({ models, opening, transport, busy }) {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(/** @type {string | null} */ (null));
  /** @type {string[]} */
  const names = models?.models ?? [];
  const model = chosen ?? models?.default;
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    const sentence = text.trim() || EXAMPLE_TEXTS[models?.kinds?.[model]] || "Good morning.";
    opening("own", async () => {
      const made = await transport.send?.("runs", { text: sentence, model });
      return {
        ...NOTHING_CHOSEN,
        run: made.run,
        screen: OPENS_ON[models?.kinds?.[model]] ?? "walk",
      };
    });
  };
  return (
    <form class="own" onSubmit={submit}>
      <input
        type="text"
        class="field"
        aria-label="your own sentence"
        autocomplete="off"
        spellcheck={false}
        value={text}
        placeholder={EXAMPLE_TEXTS[models?.kinds?.[model]] ?? ""}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <LengthNote text={text} models={models} model={model} />
      <div class="row">
        {names.length > 1 && (
          <select
            aria-label="the model that reads it"
            value={model}
            onChange={(event) => setChosen(event.currentTarget.value)}
          >
            {names.map((name) => (
              <option value={name} selected={name === model}>
                {visible(name.split("/").at(-1))}
              </option>
            ))}
          </select>
        )}
        <button class="button strong" disabled={busy !== null || isTooLong(text, models, model)}>
          {busy === "own" ? "running…" : "Run"}
        </button>
      </div>
    </form>
  );
}

/**
 * Worked examples that no card has.
 * @type {{name: string, title: string, teaser: string, screen: ScreenName}[]}
 */
const MORE_EXAMPLES = [
  { name: "lights", title: "Turn off the lights", teaser: "one sum, written out", screen: "walk" },
  {
    name: "luong",
    title: "Luong attention",
    teaser: "from one sequence to another",
    screen: "alignment",
  },
  { name: "synthesizer", title: "The Synthesizer", teaser: "scores without keys", screen: "walk" },
  {
    name: "journey",
    title: "Positions",
    teaser: "how attention knows where a word is",
    screen: "positions",
  },
];

/**
 * The screen on which a sentence opens: where its words come from, or how one of them is computed.
 * @type {Record<string, ScreenName>}
 */
const OPENS_ON = { translator: "alignment", gpt: "walk", encoder: "heads" };

/** A text that suits each kind of model. @type {Record<string, string>} */
const EXAMPLE_TEXTS = {
  translator: "The teacher reads a book.",
  gpt: "To be, or not to",
  encoder: "The man saw the astronomer with a telescope",
};

/**
 * Return a small drawing of a card; the three functions below draw in its 96 × 56 units.
 * @type {(...inside: any[]) => any}
 */
const drawing = (...inside) => (
  <svg class="drawing" viewBox="0 0 96 56" aria-hidden="true">
    {inside}
  </svg>
);
/**
 * Return a box in a colour of the theme.
 * @type {(x: number, y: number, w: number, h: number, kind?: string, o?: number) => any}
 */
const box = (x, y, w, h, kind = "bar", o = 1) => (
  <rect x={x} y={y} width={w} height={h} rx="1.5" fill={`var(--${kind})`} fill-opacity={o} />
);
/** Return a line in a colour of the theme. @type {(d: string, kind?: string, w?: number) => any} */
const path = (d, kind = "soft", w = 1.5) => (
  <path d={d} fill="none" stroke={`var(--${kind})`} stroke-width={w} />
);

/** A small drawing for each card. @type {Record<string, any>} */
const DRAWINGS = {
  journey: drawing(
    [0, 1, 2, 3, 4, 5].map((i) =>
      box(8 + 14 * i, 6, 9, 9, i === 1 ? "query" : "bar", i === 1 ? 1 : 0.55),
    ),
    [5, 12, 11, 4, 3, 7].map((w, i) =>
      path(`M${26.5} 44C${26.5} 30 ${12.5 + 14 * i} 32 ${12.5 + 14 * i} 18`, "query", w / 3),
    ),
    box(22, 44, 9, 9, "query"),
  ),
  qkv: drawing(
    box(8, 22, 10, 12, "soft", 0.5),
    path("M20 28 40 12M20 28H40M20 28 40 44"),
    box(42, 5, 30, 12, "query", 0.85),
    box(42, 22, 30, 12, "key", 0.85),
    box(42, 39, 30, 12, "value", 0.85),
  ),
  scale: drawing(
    path("M4 50H92"),
    path("M6 49C26 47 34 36 48 36S70 47 90 49", "query", 2),
    path("M36 49C42 47 44 8 48 8S54 47 60 49", "key", 2),
  ),
  mask: drawing(
    [0, 1, 2, 3, 4].map((i) =>
      [0, 1, 2, 3, 4].map((j) =>
        box(24 + 10 * j, 4 + 10 * i, 8, 8, j > i ? "line" : "bar", j > i ? 0.6 : 0.4 + 0.12 * j),
      ),
    ),
  ),
  bank: drawing(
    path("M48 44 28 22M48 44 68 22", "query", 2),
    <circle cx="48" cy="44" r="4" fill="none" stroke="var(--soft)" stroke-width="1.5" />,
    <>
      <circle cx="28" cy="22" r="5" fill="var(--query)" />
      <circle cx="68" cy="22" r="5" fill="var(--query)" />
    </>,
    <>
      <circle cx="12" cy="10" r="4" fill="var(--bar)" />
      <circle cx="84" cy="10" r="4" fill="var(--bar)" />
    </>,
  ),
  heads: drawing(
    [0, 1, 2, 3, 4].map((i) => box(8 + 18 * i, 24, 10, 8, "soft", 0.55)),
    path("M85 22C85 4 31 4 31 22", "query", 3),
    path("M85 34C85 50 67 50 67 34", "key", 3),
  ),
  translate: drawing(
    [0, 1, 2, 3].map((i) => box(10 + 22 * i, 6, 14, 8, "key", 0.8)),
    [0, 1, 2, 3].map((i) => box(10 + 22 * i, 42, 14, 8, "query", 0.8)),
    path("M17 14V42M39 14C39 28 61 28 61 42M61 14C61 28 39 28 39 42M83 14V42", "soft", 3),
  ),
  next: drawing(
    [60, 34, 22, 12, 7].map((w, i) => box(24, 4 + 10.5 * i, w, 7, "bar", 1 - 0.14 * i)),
    [0, 1, 2, 3, 4].map((i) => box(6, 5 + 10.5 * i, 13, 5, "soft", 0.45)),
  ),
};
