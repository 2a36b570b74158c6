/** Alignment: the weights between words, as ribbons and as a matrix. */
import { useMemo, useState } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered, headName, layerOf } from "../../parts/answered.jsx";
import { cellColour } from "../../parts/colour.js";
import { Matrix } from "../../parts/matrix.jsx";
import { argmax, clamp, full, percent, toNumber } from "../../parts/numbers.js";
import { visible } from "../../parts/text.js";
import { WhatIf } from "../../parts/what_if.jsx";
import { number, perRun, shared, text } from "../../state/fields.js";
import { Ribbons, THINNEST } from "./ribbons.jsx";

export const title = "Alignment";
export const shows = "which words attend to which, as ribbons";
export const needs = "alignment";
export const begins = "sharpest";
export const fields = {
  ...shared("layer", "head"),
  /** The word below whose ribbons are lit. */
  word: perRun(number("word")),
  /** "mean" of all heads, or one "head". */
  weightsOf: text("of", "mean"),
};
export { Alignment as view };

/**
 * @typedef {{side: 0 | 1, at: number}} Word  side 0 holds the keys (columns, above), side 1 the
 *   queries (rows, below)
 * @typedef {{rows: string[], columns: string[], weights: number[][], lit: Word}} Aligned
 * @typedef {{setHover: (word: Word | null) => void, pin: (word: Word) => void}} Pointing
 */

/** The mean of all heads, or one head, as ribbons and as a matrix. @param {ScreenProps} props */
function Alignment(props) {
  const { run, attention, state, go, answers, sharpest } = props;
  const h = state.alignment.weightsOf === "head" ? state.head : "mean";
  const found = useAnswer(answers, `runs/${run.run}/alignment`, { l: attention.l, h });
  const cross = attention.kind === "cross";
  return (
    <>
      <h2>{cross ? "Which words each written word attends to" : "Which words attend to which"}</h2>
      <p class="lede">
        {cross ? (
          <>
            Below, or on the right, is what the model wrote; above, or on the left, what it read. A
            ribbon is the attention to a word that was read while another one was written.
          </>
        ) : (
          <>
            Below, or on the right, are the queries; above, or on the left, the keys. A ribbon is
            the attention of a query to a key.
          </>
        )}{" "}
        The wider the ribbon, the larger the share. Hover, tap or focus a word to highlight its
        ribbons.
      </p>
      <div class="row" style={{ margin: "16px 0" }}>
        <span class="segments" role="group" aria-label="which heads">
          <button
            type="button"
            aria-pressed={state.alignment.weightsOf !== "head"}
            onClick={() => go({ alignment: { weightsOf: "mean" } })}
          >
            mean of all heads
          </button>
          <button
            type="button"
            aria-pressed={state.alignment.weightsOf === "head"}
            onClick={() => go({ alignment: { weightsOf: "head" } })}
          >
            head {state.head}
          </button>
        </span>
        {sharpest && <SharpestNote run={run} attention={attention} sharpest={sharpest} go={go} />}
      </div>
      <Answered answer={found}>
        {(/** @type {AlignmentAnswer} */ value) => <AlignedWords found={value} {...props} />}
      </Answered>
    </>
  );
}

/**
 * How sharply this layer aligns, or a button that goes to the sharpest layer.
 * @param {{run: Run, attention: Attention, sharpest: Sharpest, go: Go}} props
 */
function SharpestNote({ run, attention, sharpest, go }) {
  const best = run.attentions[sharpest.l];
  if (best.l !== attention.l)
    return (
      <button type="button" class="button" onClick={() => go({ layer: best.l, head: sharpest.h })}>
        sharper: layer {layerOf(best)}
      </button>
    );
  const compared =
    sharpest.of > 1 ? `Layer ${layerOf(best)} is the sharpest of ${sharpest.of}: ` : "";
  return (
    <span class="soft" data-sharpest>
      {compared}a word’s largest share is on average {percent(sharpest.mean)} in the mean of all
      heads, {percent(sharpest.head)} in head {sharpest.h}
    </span>
  );
}

/**
 * One word is lit: the one that is pointed at, or else the one that was clicked.
 * @param {ScreenProps & {found: AlignmentAnswer}} props
 */
function AlignedWords({ found, run, attention, state, go, answers, transport, theme }) {
  const weights = useMemo(() => found.weights.map((row) => row.map(toNumber)), [found]);
  const { rows, columns } = found;
  const [hover, setHover] = useState(/** @type {Word | null} */ (null));
  const words = found.real_rows.filter((at) => /[\p{L}\p{N}]/u.test(rows[at]));
  const pinned =
    state.alignment.word !== null && state.alignment.word < rows.length
      ? state.alignment.word
      : (words.at(-1) ?? found.real_rows.at(-1) ?? 0);
  /** @type {Word} */
  const lit = hover ?? { side: 1, at: pinned };
  /** @param {Word} word */
  const pin = (word) => {
    setHover(word);
    if (word.side) go({ alignment: { word: word.at } }, false);
  };
  const shared = { rows, columns, weights, lit, setHover, pin };
  const i =
    run.output && attention.kind === "cross"
      ? run.output.words.find((one) => one.word === pinned)?.i
      : undefined;
  const keys = useAnswer(answers, i === undefined ? null : `runs/${run.run}/tokens`, {
    l: attention.l,
    axis: "k",
  });
  const textWords = [new Set(found.real_columns), new Set(found.real_rows)];
  return (
    <div class="stack">
      <div class="card ribbons">
        <Ribbons {...shared} theme={theme} textWords={textWords} />
      </div>
      {i !== undefined && (
        <WhatIf
          run={run}
          attention={attention}
          h={state.head}
          i={i}
          keyWords={keys.value}
          state={state}
          go={go}
          answers={answers}
          transport={transport}
          theme={theme}
          query={rows[pinned]}
        />
      )}
      <div class="align">
        <Weights {...shared} theme={theme} masks={attention.mask !== "everyone"} />
        <div>
          <div class="card">
            <output class="readout" aria-live="polite" style={{ margin: 0, border: 0, padding: 0 }}>
              <Shares {...shared} />
            </output>
          </div>
          <p class="soft" style={{ fontSize: "13px", marginTop: "12px" }}>
            {state.alignment.weightsOf === "head"
              ? headName(attention, state.head)
              : `the mean of ${attention.heads.length} heads of ${attention.name}`}
            . Tokens are joined into words: a word’s row is the mean over its tokens, its column
            their sum.{" "}
            {(found.known ?? 1) < 0.999 ? (
              <>
                Only the largest weights of each query were kept, {percent(found.known)} of all
                weight.{" "}
              </>
            ) : (
              ""
            )}
            Ribbons under {percent(THINNEST)} are not drawn; the matrix shows all.
          </p>
        </div>
      </div>
    </div>
  );
}

/**
 * The six largest shares from, or to, the highlighted word.
 * @param {Aligned} props
 */
function Shares({ rows, columns, weights, lit }) {
  const isQuery = lit.side === 1;
  const shares = isQuery ? weights[lit.at] : weights.map((row) => row[lit.at]);
  const [word, others] = isQuery ? [rows[lit.at], columns] : [columns[lit.at], rows];
  const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, 6);
  return (
    <>
      <span class="soft">{isQuery ? "attention from" : "attention to"}</span>{" "}
      <b class={isQuery ? "q" : "k"}>{visible(word)}</b>
      <table class="pairs">
        <caption class="hidden">
          {isQuery ? "the words it attends to" : "the words that attend to it"}
        </caption>
        <thead class="hidden">
          <tr>
            <th scope="col">word</th>
            <th scope="col">share</th>
          </tr>
        </thead>
        <tbody>
          {order.map((at) => (
            <tr>
              <td class={isQuery ? "k" : "q"}>{visible(others[at])}</td>
              <td title={full(shares[at])}>{percent(shares[at])}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

/**
 * The weights as a matrix, and the one pointed at in full.
 * @param {Aligned & Pointing & {masks: boolean, theme: Theme}} props
 */
function Weights({ rows, columns, weights, lit, setHover, pin, masks, theme }) {
  const colour = useMemo(() => cellColour(theme, masks), [theme, masks]);
  const [at, setAt] = useState(/** @type {number[] | null} */ (null));
  const [i, j] =
    at ??
    (lit.side
      ? [lit.at, argmax(weights[lit.at])]
      : [argmax(weights.map((row) => row[lit.at])), lit.at]);
  const leave = () => {
    setAt(null);
    setHover(null);
  };
  /** @type {(i: number, j: number) => void} */
  const point = (i, j) => {
    setAt([i, j]);
    setHover({ side: 1, at: i });
  };
  return (
    <div class={masks ? "masks" : ""} onPointerLeave={leave}>
      <Matrix
        rows={weights}
        labels={rows}
        columns={columns}
        name="weights"
        colour={colour}
        cell={clamp(Math.floor(400 / rows.length), 2, 24)}
        at={[i, j]}
        chosen={lit.side ? lit.at : undefined}
        point={point}
        pick={(/** @type {number} */ row) => pin({ side: 1, at: row })}
      />
      <p class="figures" style={{ marginTop: "7px", minHeight: "3.2em" }}>
        {visible(rows[i])} → {visible(columns[j])} = <b>{full(weights[i][j])}</b>
      </p>
    </div>
  );
}
