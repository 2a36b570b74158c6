/**
 * Positions: how attention knows where a word is. Three encodings without a model, or what a model
 * does.
 */
import { useAnswer } from "../../answers.js";
import { Answered, allAnswers, headName, layerOf } from "../../parts/answered.jsx";
import { Term } from "../../parts/term.jsx";
import { clipped } from "../../parts/text.js";
import { WordPicker } from "../../parts/word_picker.jsx";
import { tokenRange, wordsOrPieces } from "../../parts/words.js";
import { shared, text } from "../../state/fields.js";
import { Encodings } from "./encodings.jsx";
import { Added, Angles, BeforeAndAfter, Biases, ByDistance } from "./panels.jsx";

export const title = "Positions";
export const shows = "what positions do to the scores";
export const needs = "positions";
export const begins = "query";
export const splitsWords = true;
/** A saved file may have no answers for this screen. @type {ScreenModule["isOffered"]} */
export const isOffered = (run) => !run?.held || run.attentions.some((one) => one.has?.positions);
export const fields = {
  ...shared("layer", "head", "query", "kind"),
  /** The encoding that is shown without a model. */
  encoding: text("encoding", "sinusoidal"),
  ...shared("features"),
};
export { Positions as view };

/** A worked example has no model: it shows encodings alone. @param {ScreenProps} props */
const Positions = (props) =>
  props.run.example ? <Encodings {...props} /> : <OfModel {...props} />;

/**
 * What the chosen layer does for positions, and one query with and without it.
 * @param {ScreenProps} props
 */
function OfModel(props) {
  const { run, attention, state, answers } = props;
  const { l } = attention;
  const i = Math.min(state.query ?? Math.max(0, attention.n_q - 2), attention.n_q - 1);
  const encoding = useAnswer(answers, `runs/${run.run}/encoding`, { l, h: state.head });
  const query = useAnswer(answers, `runs/${run.run}/positions`, { l, h: state.head, i });
  const tokens = useAnswer(answers, `runs/${run.run}/tokens`, tokenRange(attention, "q", i));
  const keys = useAnswer(answers, `runs/${run.run}/tokens`, tokenRange(attention, "k", 0));
  return (
    <Answered answer={allAnswers(encoding, query, tokens, keys)}>
      {([model, row, words, keyWords]) => (
        <Placed {...props} model={model} row={row} words={words} keyWords={keyWords} i={i} />
      )}
    </Answered>
  );
}

/** What each kind of encoding does, in words. @type {Record<string, any>} */
const DOES = {
  sinusoidal: (
    <>
      This model <b>adds sines and cosines</b> to every <Term name="embedding" />, once, before its
      first <Term name="layer" />.
    </>
  ),
  learned: (
    <>
      This model has <b>learnt one vector for each position</b> and adds it to the{" "}
      <Term name="embedding" />, once, before its first <Term name="layer" />.
    </>
  ),
  rotary: (
    <>
      This model <b>rotates queries and keys</b> in every <Term name="layer" />, by an angle that
      grows with the position. Nothing is added to the <Term name="embedding" />.
    </>
  ),
  none: (
    <>
      This model <b>adds nothing</b> for positions. What a word may see, its <Term name="mask" />,
      is all that it knows of the order.
    </>
  ),
  unknown: (
    <>
      This recording does not say what the model does for positions. What can be measured is how its
      scores depend on the distance.
    </>
  ),
};

/**
 * The parts that the model’s encoding has, one below the other.
 * @param {ScreenProps & {model: EncodingAnswer, row: PositionsAnswer, words: TokenRange, keyWords:
 *   TokenRange, i: number}} props
 */
function Placed({ attention, state, go, theme, model, row, words, keyWords, i }) {
  const picked = wordsOrPieces(words, state.pieces === 1);
  const word = picked.range.tokens[picked.at(i)] ?? words.tokens[i - words.start];
  const slopes = model.bias !== null;
  return (
    <>
      <h2>Where a word is</h2>
      <p class="lede">
        {DOES[model.kind]}{" "}
        {slopes && (
          <>
            A number that depends on the distance, <span class="figures">{model.bias}</span>, is{" "}
            <b>added to every score</b>: a <Term name="bias" />.
          </>
        )}
      </p>
      <div class="picker" style={{ margin: "14px 0 16px" }}>
        <h3>query</h3>
        <WordPicker
          words={picked.range}
          at={picked.at(i)}
          choose={(/** @type {number} */ place) => go({ query: picked.query(place) })}
          label="the query"
        />
      </div>
      {model.added && row.added && (
        <Added model={model} row={row} word={word} i={i} theme={theme} words={words} />
      )}
      {model.angles && <Angles model={model} words={words} theme={theme} i={i} />}
      {slopes && row.biases && (
        <Biases row={row} i={i + attention.n_k - attention.n_q} word={word} />
      )}
      <div class="two-panels" style={{ marginTop: "18px" }}>
        <section class="card panel">
          <h3>
            the scores of <span class="q">{clipped(word, 40)}</span>, with positions and without
          </h3>
          {row.without ? (
            <BeforeAndAfter
              row={row}
              keyWords={state.pieces === 1 ? null : keyWords}
              theme={theme}
            />
          ) : (
            <>
              <p class="soft">{row.why && `${row.why[0].toUpperCase()}${row.why.slice(1)}.`}</p>
              {model.added && layerOf(attention) !== "0" && (
                <button
                  type="button"
                  class="button"
                  onClick={() => go({ layer: null, kind: attention.kind })}
                >
                  layer 0
                </button>
              )}
            </>
          )}
        </section>
        <section class="card panel">
          <h3>
            {headName(attention, state.head)}: <Term name="weight">weights</Term> and{" "}
            <Term name="score">scores</Term> by distance, measured on this text
          </h3>
          <ByDistance model={model} theme={theme} />
        </section>
      </div>
    </>
  );
}
