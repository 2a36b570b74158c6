/**
 * The experiment of lesson 7: which heads of a translator read one of two words from a third, and a
 * control in which another word stands between them.
 */
import { useState } from "preact/hooks";
import { useAnswer } from "../answers.js";
import { Answered, headName } from "../parts/answered.jsx";
import { percent } from "../parts/numbers.js";
import { Term } from "../parts/term.jsx";
import { visible } from "../parts/text.js";
import { makeRun } from "./lessons.js";
import { isKept, READING } from "./tries_by_model.jsx";

/** The word that `telescope explain` inserts, too. */
const INSERTED = "yesterday";

/**
 * The heads that do not attend by position, as a table, with the control beside them.
 * @param {Pick<ScreenProps, "run" | "go" | "answers" | "transport"> & {state: State}} props
 */
export function Experiment({ run, state, go, answers, transport }) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  const found = useAnswer(answers, `runs/${run.run}/readings`, READING);
  const inserted = state.heads.control;
  const control = useAnswer(answers, inserted && `runs/${inserted}/readings`, {
    ...READING,
    between: `${READING.between},${INSERTED}`,
  });
  /** @param {string} text */
  const insert = async (text) => {
    setBusy(true);
    setProblem(null);
    try {
      // The same model reads it; without a server, it is among what was recorded.
      const made = transport.send
        ? (await transport.send("runs", { text, model: run.model })).run
        : await makeRun({ text, kind: "translator" }, transport, answers);
      go({ heads: { control: made } });
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
    setBusy(false);
  };
  if (found.error) return null; // another model's text does not have these words
  return (
    <section class="card experiment" aria-label="which heads read which word">
      <Answered answer={found}>
        {(/** @type {ReadingsAnswer} */ value) => (
          <>
            <Readings
              run={run}
              found={value}
              control={inserted && control.fresh ? control.value : null}
            />
            <p class="row">
              {value.control && !control.value && (
                <button
                  type="button"
                  class="button"
                  disabled={busy}
                  onClick={() => insert(/** @type {string} */ (value.control))}
                >
                  insert “{INSERTED}”
                </button>
              )}
              {inserted && control.value && (
                <>
                  <span>After the arrow: the weight in “{visible(value.control)}”.</span>{" "}
                  <button
                    type="button"
                    class="button"
                    onClick={() => go({ heads: { control: null } })}
                  >
                    take it out again
                  </button>
                </>
              )}
            </p>
            {(problem ?? control.error) && <p role="alert">{problem ?? control.error?.message}</p>}
          </>
        )}
      </Answered>
      <Evidence />
    </section>
  );
}

/**
 * The heads without a habit: their weights, which word each reads, and what the control says.
 * @param {{run: Run, found: ReadingsAnswer, control: ReadingsAnswer | null}} props
 */
function Readings({ run, found, control }) {
  const able = found.heads.filter((one) => one.habit === null);
  /** @param {ReadingsAnswer["heads"][0]} head */
  const inControl = (head) =>
    control?.heads.find((one) => one.l === head.l && one.h === head.h)?.weights;
  return (
    <>
      <p>
        From <b class="q">{visible(found.word)}</b>: {found.heads.length - able.length} of{" "}
        {found.heads.length} heads attend by position (a <Term name="habit" />) and are no evidence
        for a word. A head reads a word if it gives it more than an even share,{" "}
        {found.even.map(percent).join(" and ")}, and more so than the other.
      </p>
      <div class="scroller" tabindex={0} role="region" aria-label="heads and the two words">
        <table class="pairs">
          <thead>
            <tr>
              <th scope="col">head</th>
              {found.between.map((word) => (
                <th scope="col">{visible(word)}</th>
              ))}
              {control && <th scope="col">{INSERTED}</th>}
              <th scope="col">reads</th>
              {control && <th scope="col">in the control its weight</th>}
            </tr>
          </thead>
          <tbody>
            {able.map((head) => {
              const after = inControl(head);
              return (
                <tr>
                  <td>{headName(run.attentions[head.l], head.h)}</td>
                  {head.weights.map((weight, at) => (
                    <td>
                      {percent(weight)}
                      {after && ` → ${percent(after[at])}`}
                    </td>
                  ))}
                  {after && <td>{percent(after[2])}</td>}
                  <td class="said">
                    {head.reads === null ? "neither" : visible(found.between[head.reads])}
                  </td>
                  {after && (
                    <td class="said">
                      {head.reads === null
                        ? "—"
                        : isKept(head.weights[head.reads], after[head.reads])
                          ? "stays: it is not nearness"
                          : "falls: nearness made a part of it"}
                    </td>
                  )}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** What would count as evidence, in plain words. */
const Evidence = () => (
  <p class="soft">
    <b>What counts as evidence?</b> More than any head would give by chance or by habit, and in a
    test that could have failed. That is the <b>negative control</b>: the same sentence, changed so
    that the claim can turn out false. With <i>yesterday</i> inserted, <i>saw</i> and{" "}
    <i>astronomer</i> are still there, but <i>with</i> no longer stands beside the astronomer. A
    weight that falls by more than a quarter came from where the word stood, not from what it is,
    and is no evidence. A weight that stays has passed one test, on one sentence. It is a
    perspective of one head: the model decides nothing here.
  </p>
);
