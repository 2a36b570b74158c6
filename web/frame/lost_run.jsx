/**
 * What stands in place of a run that the address names and nobody can make: why, and the way on.
 */
import { useEffect, useState } from "preact/hooks";
import { useAnswer } from "../answers.js";
import { asSentence, visible } from "../parts/text.js";
import { findLesson, makeRun } from "../lessons/lessons.js";
import { NoModel } from "../transport/remake.js";

/** The name of a run that a model made of a sentence. */
const SENTENCE = /^(s[0-9a-f]{12}|-)$/;

/** Return how a model is called. @param {string} name */
const modelName = (name) => visible(name.split("/").at(-1));

/**
 * The problem in one sentence, and a way to open the sentence all the same.
 * @param {FrameProps & {problem: Error & {code?: string | number}, onSent: () => void,
 *   onFound: () => void}} props
 */
export function LostRun({ problem, onSent, onFound, ...props }) {
  const { state, go, openRun, answers, transport } = props;
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState(/** @type {string | null} */ (null));

  /** Make a run, and open it; where it is the run of the address, its view is kept. */
  const open = async (/** @type {() => Promise<string>} */ make) => {
    setBusy(true);
    setFailure(null);
    try {
      const name = await make();
      onSent();
      if (name === state.run) onFound();
      else openRun(name);
    } catch (problem) {
      setFailure(/** @type {Error} */ (problem).message);
    }
    setBusy(false);
  };
  const send = /** @type {NonNullable<Transport["send"]>} */ (transport.send);
  /** @type {(text: string, model: string | undefined) => Promise<void>} */
  const read = (text, model) => open(async () => (await send("runs", { text, model })).run);

  // A lesson is as good with the model of its kind that is here.
  const missing = problem instanceof NoModel ? problem : null;
  const lesson = findLesson(state.lesson);
  const source = lesson?.captions[state.caption ?? 0]?.run ?? lesson?.run;
  useEffect(() => {
    if (!missing || !source) return;
    makeRun(source, transport, answers).then(
      (run) => go({ run }, false),
      (problem) => setFailure(problem.message),
    );
  }, [missing]);

  const isOld = problem.code === "unknown-run" && SENTENCE.test(state.run ?? "");
  return (
    <section class="lost">
      <p class="failure" role="alert">
        {missing ? whyMissing(missing) : isOld ? OLD_ADDRESS : asSentence(problem.message)}
      </p>
      {missing && (
        <p class="row">
          {missing.models.map((name) => (
            <button
              type="button"
              class="button"
              disabled={busy}
              onClick={() => read(missing.source.text ?? "", name)}
            >
              Open it with {modelName(name)}
            </button>
          ))}
        </p>
      )}
      {(isOld || (state.text !== null && !missing)) && (
        <TypeSentence
          answers={answers}
          transport={transport}
          busy={busy}
          initial={state.text ?? ""}
          model={state.model}
          read={read}
        />
      )}
      {failure && (
        <p class="failure" role="alert">
          {asSentence(failure)}
        </p>
      )}
    </section>
  );
}

const OLD_ADDRESS =
  "This address names a sentence without holding it: it comes from an older version, or its end " +
  "was cut off. Type the sentence, and the same view of it opens.";

/** @param {NoModel} missing */
const whyMissing = ({ source, models }) =>
  `This link was made with the model ${modelName(source.model ?? "")}, which is not here; ` +
  (models.length ? `here are ${models.map(modelName).join(", ")}.` : "no other is here either.");

/**
 * A field for the sentence, and the model that reads it.
 * @param {Pick<FrameProps, "answers" | "transport"> & {busy: boolean, initial: string,
 *   model: string | null, read: (text: string, model: string | undefined) => void}} props
 */
function TypeSentence({ answers, transport, busy, initial, model, read }) {
  const [text, setText] = useState(initial);
  const [chosen, setChosen] = useState(model);
  const { value } = useAnswer(answers, transport.canRun ? "models" : null);
  /** @type {string[]} */
  const models = value?.models ?? [];
  const reader = models.find((name) => name === chosen) ?? models[0];
  return (
    <form
      class="own"
      onSubmit={(event) => {
        event.preventDefault();
        if (text.trim() && !busy) read(text.trim(), reader);
      }}
    >
      <input
        type="text"
        class="field"
        aria-label="the sentence of this address"
        autocomplete="off"
        spellcheck={false}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <div class="row">
        {models.length > 1 && (
          <select
            aria-label="the model that reads it"
            value={reader}
            onChange={(event) => setChosen(event.currentTarget.value)}
          >
            {models.map((name) => (
              <option value={name} selected={name === reader}>
                {modelName(name)}
              </option>
            ))}
          </select>
        )}
        <button class="button strong" disabled={busy}>
          {busy ? "computing…" : "Open"}
        </button>
      </div>
    </form>
  );
}
