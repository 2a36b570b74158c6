/** What the model made of the text, under the input: a translation whose words can be clicked, or the next word. */
import { useAnswer } from "../answers.js";
import { percent } from "../parts/numbers.js";
import { visible } from "../parts/text.js";

/** @param {{run: Run, state: State, go: Go, answers: import("../answers.js").Answers, shown: {attention: Attention | undefined} | null}} props */
export function OutputLine({ run, state, go, answers, shown }) {
  const output = /** @type {NonNullable<Run["output"]>} */ (run.output);
  const gpt = output.kind === "gpt";
  const next = useAnswer(answers, gpt ? `runs/${run.run}/output` : null);
  if (gpt)
    return (
      <p class="wrote">
        <span class="soft">likeliest next:</span>
        {(next.value?.candidates ?? [])
          .slice(0, 3)
          .map((/** @type {OutputAnswer["candidates"][0]} */ one) => (
            <button type="button" onClick={() => go({ screen: "output" })}>
              {visible(one.text)} <small>{percent(one.p)}</small>
            </button>
          ))}
      </p>
    );
  const cross = shown?.attention?.kind === "cross";
  /** @param {{i: number, word: number}} word  open where a word comes from, or choose it as the query of the attention that is shown */
  const open = (word) => {
    if (state.screen === "output") go({ i: word.i });
    else if (cross && (state.screen === "walk" || state.screen === "heads")) go({ i: word.i });
    else go({ screen: "alignment", i: null, word: word.word });
  };
  /** @param {{first: number, i: number, word: number}} word */
  const isChosen = (word) =>
    state.screen === "alignment"
      ? word.word === state.word
      : state.i !== null && word.first <= state.i && state.i <= word.i;
  const marks = state.screen === "alignment" || state.screen === "output" || cross;
  return (
    <p class="wrote">
      <span class="soft">the model wrote:</span>
      {output.words.map((word) => (
        <button
          type="button"
          aria-pressed={marks && isChosen(word)}
          title="which words does it come from?"
          onClick={() => open(word)}
        >
          {visible(word.name)}
        </button>
      ))}
    </p>
  );
}
