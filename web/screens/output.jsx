/**
 * Output: the likeliest tokens after a position, as bars, with the settings by which one of them is
 * chosen.
 */
import { useState } from "preact/hooks";
import { useAnswer } from "../answers.js";
import { Answered } from "../parts/answered.jsx";
import { Drawing } from "../parts/drawing.jsx";
import { count, full, percent, short } from "../parts/numbers.js";
import { Term } from "../parts/term.jsx";
import { visible } from "../parts/text.js";
import { tokenRange } from "../parts/words.js";
import { number, perRun, shared } from "../state/fields.js";

export const title = "Output";
export const shows = "the likeliest next tokens and their probabilities";
export const needs = null;
export const subject = "model";
/** @type {ScreenModule["isOffered"]} */
export const isOffered = (run) => Boolean(run?.output);
export const fields = {
  ...shared("query"),
  temperature: number("temperature", 1),
  /** 0 keeps all tokens. */
  topK: number("top_k", 0),
  topP: number("top_p", 1),
  /** What draws; null until a reader does. */
  seed: perRun(number("seed")),
  /** How many words are written on; 0 draws one token. */
  words: perRun(number("words", 0)),
};
export { OutputScreen as view };

const TEN = 10; // candidates; one more where what was written is none of them

/**
 * The likeliest tokens of a GPT’s next word, or at one piece of a translation.
 * @param {ScreenProps} props
 */
function OutputScreen(props) {
  const { run, state, go, answers } = props;
  const { temperature, topK, topP } = state.output;
  const made = run.output;
  const gpt = made?.kind === "gpt";
  const last = (made?.n ?? 1) - 1;
  const i = Math.min(state.query ?? (gpt ? last : 0), last);
  const settings = { temperature, top_k: topK, top_p: topP };
  const found = useAnswer(answers, made ? `runs/${run.run}/output` : null, { i, ...settings });
  // A GPT may be asked after every token that it has read.
  const read = useAnswer(
    answers,
    gpt ? `runs/${run.run}/tokens` : null,
    gpt ? tokenRange(run.attentions[0], "q", i) : undefined,
  );
  if (!made)
    return (
      <p class="failure" role="status">
        This run has no output: a recording keeps attentions, not what the model wrote.
      </p>
    );
  const before = gpt ? textBefore(run, read.value, i) : writtenBefore(made, found.value);
  return (
    <>
      <h2>{gpt ? "Which word comes next" : "What it could have written"}</h2>
      <p class="lede">
        {gpt ? (
          <>
            The vector of a word becomes one <Term name="logit" /> for every token of the
            vocabulary; softmax makes them probabilities of what comes next. Choose the last word,
            or one before it:
          </>
        ) : (
          <>
            For every piece of a word the decoder gave each token of its vocabulary a{" "}
            <Term name="logit" />. A word may have several pieces, and its probability is the
            product of theirs. The likeliest tokens at one piece, and the one that was written:
          </>
        )}
      </p>
      {gpt
        ? read.value && <Read range={read.value} i={i} go={go} />
        : found.value && <Written made={made} i={i} word={found.value.word} go={go} />}
      <div class="output">
        <div class="stack">
          <Answered answer={found}>
            {(/** @type {OutputAnswer} */ value) => (
              <Bars found={value} isLast={i === last} before={before} {...props} />
            )}
          </Answered>
          <Drawing {...props} i={i} settings={settings} before={before} />
        </div>
        <Settings
          chosen={state.output}
          go={go}
          kept={found.value?.kept}
          vocabulary={found.value?.vocabulary}
        />
      </div>
    </>
  );
}

/**
 * Return the text that a GPT has read up to query i, with spaces between its words.
 * @param {Run} run
 * @param {TokenRange | null} range
 * @param {number} i
 */
function textBefore(run, range, i) {
  if (!range || i === (run.output?.n ?? 0) - 1) return run.text ?? "";
  return range.tokens
    .slice(0, i + 1 - range.start)
    .map((token) => (token.startsWith("·") && token.length > 1 ? token.slice(1) : ` ${token}`))
    .join("")
    .trim();
}

/**
 * Return what a translator had written before the piece that is shown.
 * @param {NonNullable<Run["output"]>} made
 * @param {OutputAnswer | null} found
 */
function writtenBefore(made, found) {
  if (!found?.word) return "";
  const first = found.word.pieces[0].i;
  const whole = made.words.filter((word) => word.i < first).map((word) => `${word.name} `);
  const begun = found.word.pieces.filter((piece) => piece.i < found.i);
  return [...whole, ...begun.map((piece) => piece.text.replace(/^·/, ""))].join("");
}

/**
 * The tokens that a GPT has read: what comes next is shown behind one of them.
 * @param {{range: TokenRange, i: number, go: Go}} props
 */
const Read = ({ range, i, go }) => (
  <div class="words" role="group" aria-label="behind which token" style={{ margin: "14px 0" }}>
    {range.start > 0 && <span class="soft">…</span>}
    {range.tokens.map((token, at) => (
      <button
        type="button"
        aria-pressed={range.start + at === i}
        onClick={() => go({ query: range.start + at })}
      >
        {visible(token)}
      </button>
    ))}
  </div>
);

/**
 * The words that were written, to choose from.
 * @param {{made: NonNullable<Run["output"]>, i: number | undefined, word: OutputAnswer["word"] |
 *   undefined, go: Go}} props
 */
function Written({ made, i, word: chosen, go }) {
  return (
    <>
      <div class="words" role="group" aria-label="the written word" style={{ margin: "14px 0" }}>
        {made.words.map((word) => (
          <button
            type="button"
            aria-pressed={i !== undefined && word.first <= i && i <= word.i}
            onClick={() => go({ query: word.i })}
          >
            {visible(word.name)}
          </button>
        ))}
      </div>
      {chosen && <ChosenWord chosen={chosen} i={i} go={go} />}
    </>
  );
}

/**
 * A word's probability, and those of its pieces, which can be clicked.
 * @param {{chosen: NonNullable<OutputAnswer["word"]>, i: number | undefined, go: Go}} props
 */
function ChosenWord({ chosen, i, go }) {
  /** @type {(p: number) => any} */
  const chance = (p) => (
    <span class="figures" title={full(p)}>
      {percent(p)}
    </span>
  );
  const pieces = chosen.pieces.length > 1 ? chosen.pieces : [];
  return (
    <div
      class="words"
      role="group"
      aria-label="the probability of the word"
      style={{ margin: "0 0 14px", alignItems: "center" }}
    >
      <b>
        {visible(chosen.name)} {chance(chosen.p)}
      </b>
      {pieces.map((piece, at) => (
        <>
          <span>{at ? "×" : "="}</span>
          <button type="button" aria-pressed={piece.i === i} onClick={() => go({ query: piece.i })}>
            {visible(piece.text)} {chance(piece.p)}
          </button>
        </>
      ))}
    </div>
  );
}

/**
 * The ten likeliest tokens, and what was written; behind the text of a GPT each can be appended,
 * which makes a new run.
 * @param {ScreenProps & {found: OutputAnswer, isLast: boolean, before: string}} props  `before` is
 *   the text up to the tokens
 */
function Bars({ found, isLast, before, run, openRun, transport }) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  const gpt = found.kind === "gpt";
  const append = gpt && isLast && transport.canRun;
  const inWord = /[\p{L}\p{N}]$/u.test(gpt ? before : before.trimEnd());
  /** Whether a token goes on with the word before it. @param {NextToken} one */
  const goesOn = (one) => inWord && /^[\p{L}\p{N}]/u.test(one.append);
  /** @param {string} more */
  const write = async (more) => {
    setBusy(true);
    setProblem(null);
    try {
      const made = await transport.send?.("runs", { text: `${run.text}${more}`, model: run.model });
      openRun(made.run);
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
    setBusy(false);
  };
  return (
    <div class="card" style={{ padding: "10px 16px" }}>
      {problem && (
        <p class="failure" role="alert">
          {problem}
        </p>
      )}
      <table class="ledger next">
        <caption class="hidden">the ten likeliest tokens</caption>
        <thead>
          <tr>
            <th scope="col">token</th>
            <th scope="col">logit</th>
            <th scope="col">probability</th>
            <th scope="col" class="share">
              <span class="hidden">as a bar</span>
            </th>
            {append && (
              <th scope="col">
                <span class="hidden">append</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {found.candidates.map((one) => (
            <tr key={one.id} class={one.id === found.id ? "chosen" : ""}>
              <td class="token">
                {goesOn(one) ? `·${visible(one.text).replace(/^·/, "")}` : visible(one.text)}
                {one.id === found.id ? (
                  <>
                    {" "}
                    <small class="soft">{found.kind === "gpt" ? "in the text" : "written"}</small>
                  </>
                ) : (
                  ""
                )}
              </td>
              <td class="was" title={full(one.logit)}>
                {short(one.logit)}
              </td>
              <td class="now" title={full(one.p)}>
                {one.p > 0 ? percent(one.p) : "—"}
              </td>
              <td class="share">
                {one.p > 0 ? (
                  <svg
                    class="meter"
                    viewBox="0 0 100 10"
                    preserveAspectRatio="none"
                    aria-hidden="true"
                  >
                    <rect y="1" height="8" width={Math.max(0.3, 100 * one.p)} fill="var(--bar)" />
                  </svg>
                ) : (
                  <small class="soft">left out</small>
                )}
              </td>
              {append && (
                <td>
                  <button
                    type="button"
                    class="button small"
                    disabled={busy || one.append === ""}
                    onClick={() => write(one.append)}
                  >
                    append
                  </button>
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
      <p class="soft" style={{ fontSize: "13px", margin: "8px 0 4px" }}>
        Bars run from 0 to 100 %. The ten likeliest of {count(found.vocabulary)} tokens
        {found.candidates.length > TEN &&
          `, and the one that ${found.kind === "gpt" ? "follows in the text" : "was written"}`}
        . {found.candidates.some(goesOn) && "A token behind · goes on with the word before it. "}␣
        is a token of nothing but a space.
      </p>
    </div>
  );
}

/**
 * Temperature, top-k and top-p, and how many tokens they leave.
 * @param {{chosen: State["output"], go: Go, kept?: number, vocabulary?: number}} props
 */
function Settings({ chosen, go, kept, vocabulary }) {
  /**
   * @type {(name: "temperature" | "topK" | "topP", label: string, min: number, max: number, step: number,
   *   said: any, text: string) => any}
   */
  const slider = (name, label, min, max, step, said, text) => (
    <div class="setting">
      <label>
        {label} <output>{text}</output>
        {/* an output takes the label for itself */}
        <input
          type="range"
          aria-label={label}
          aria-valuetext={text}
          min={min}
          max={max}
          step={step}
          value={chosen[name] ?? undefined}
          onInput={(event) => go({ output: { [name]: Number(event.currentTarget.value) } }, false)}
        />
      </label>
      <p class="soft">{said}</p>
    </div>
  );
  const { temperature, topK, topP } = chosen;
  const changed = temperature !== 1 || topK !== 0 || topP !== 1;
  return (
    <aside class="card settings">
      {slider(
        "temperature",
        "temperature",
        0.1,
        3,
        0.1,
        <>
          Logits are divided by it. Below 1 the likely become likelier, above 1 all become more
          alike.
        </>,
        temperature.toFixed(1),
      )}
      {slider(
        "topK",
        "top-k",
        0,
        20,
        1,
        "Only the k likeliest can be chosen.",
        topK ? String(topK) : "all",
      )}
      {slider(
        "topP",
        "top-p",
        0.05,
        1,
        0.05,
        "Only the likeliest whose probabilities sum to p can be chosen.",
        topP < 1 ? topP.toFixed(2) : "all",
      )}
      {kept !== undefined && (
        <p>
          {count(kept)} of {count(vocabulary ?? 0)} tokens can be chosen.
        </p>
      )}
      {changed && (
        <button
          type="button"
          class="button"
          onClick={() => go({ output: { temperature: 1, topK: 0, topP: 1 } }, false)}
        >
          reset
        </button>
      )}
    </aside>
  );
}
