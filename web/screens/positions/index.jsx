/** Positions: how attention knows where a word is. Three encodings without a model, or what a model does. */
import { useMemo, useState } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered, allAnswers, headName, layerOf } from "../../parts/answered.jsx";
import { css, signedColour, weightColour } from "../../parts/colour.js";
import { LinePlot } from "../../parts/line_plot.jsx";
import { Matrix } from "../../parts/matrix.jsx";
import {
  clamp,
  cosine,
  count,
  full,
  largest,
  norm,
  percent,
  short,
  sum,
  toNumber,
} from "../../parts/numbers.js";
import { clipped } from "../../parts/text.js";
import { SignedScale, Vector } from "../../parts/vector.jsx";
import { WordPicker } from "../../parts/word_picker.jsx";
import { tokenRange, wordsOrPieces } from "../../parts/words.js";
import { shared, text } from "../../state/fields.js";

export const title = "Positions";
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

/** @param {ScreenProps} props */
export const Positions = (props) =>
  props.run.example ? <Encodings {...props} /> : <OfModel {...props} />;

/* ---- without a model ---- */

/**
 * What each encoding is, in words: its name, what it does, what the table and the curves show.
 * @type {Record<string, {label: string, does: any, table: any, curve: any, look: any}>}
 */
const KINDS = {
  sinusoidal: {
    label: "sinusoidal",
    does: (
      <>
        A vector of sines and cosines is <b>added to the embedding</b>, one vector for each position
        (Vaswani et al. 2017). Left features change from word to word, right ones only over hundreds
        of words, like the hands of a clock.
      </>
    ),
    table: "what is added: a row for each position, a column for each feature",
    curve: "the dot product of two positions, by their distance",
    look: "From position 0 and from position 20 the curve is the same: the dot product of two positions depends on their distance alone. Near positions are similar, distant ones are not.",
  },
  rotary: {
    label: "rotary",
    does: (
      <>
        Nothing is added. Every <b>query and key is rotated</b>, pair of features by pair of
        features, by an angle that grows with the position (Su et al. 2021). Values are not.
      </>
    ),
    table: "the cosine of the angle: a row for each position, a column for each pair of features",
    curve: "the score of one query and one key, by their distance",
    look: "A rotation of both by the same angle changes no score. What is left in q·k is the difference of the angles: the distance.",
  },
  alibi: {
    label: "ALiBi",
    does: (
      <>
        Nothing is added or rotated. A multiple of the distance is <b>subtracted from the score</b>,
        with another slope for each head (Press et al. 2022).
      </>
    ),
    table: "what is added to the score: a row for each of eight heads, a column for each distance",
    curve: "the weight of a key where all scores are equal, by its distance",
    look: "Head 0 sees its neighbours alone, head 7 nearly the whole text. Nothing is learnt, and a text longer than in training is no exception.",
  },
};

/** @param {ScreenProps} props */
function Encodings({ state, go, answers, theme }) {
  const kind = KINDS[state.positions.encoding] ? state.positions.encoding : "sinusoidal";
  const d = WIDTHS.reduce((best, one) =>
    Math.abs(one - state.features) < Math.abs(best - state.features) ? one : best,
  );
  const found = useAnswer(answers, "positions", { kind, d });
  const { does } = KINDS[kind];
  return (
    <>
      <h2>Where a word is</h2>
      <p class="lede">
        A dot product does not know where two words are: shuffle the sentence, and every score stays
        the same. Three ways to tell attention the order.
      </p>
      <div class="row" style={{ margin: "16px 0 12px" }}>
        <span class="segments" role="group" aria-label="position encoding">
          {Object.entries(KINDS).map(([name, { label }]) => (
            <button
              type="button"
              aria-pressed={name === kind}
              onClick={() => go({ positions: { encoding: name } })}
            >
              {label}
            </button>
          ))}
        </span>
        {kind !== "alibi" && (
          <label class="labelled">
            features{" "}
            <input
              type="range"
              min="0"
              max={WIDTHS.length - 1}
              step="1"
              value={WIDTHS.indexOf(d)}
              aria-valuetext={`${d} features`}
              onInput={(event) =>
                go({ features: WIDTHS[Number(event.currentTarget.value)] }, false)
              }
            />{" "}
            <output>{d}</output>
          </label>
        )}
      </div>
      <p style={{ maxWidth: "78ch" }}>{does}</p>
      <Answered answer={found}>
        {(/** @type {EncodingTable} */ value) => (
          <Encoding key={value.kind} value={value} theme={theme} />
        )}
      </Answered>
    </>
  );
}

const WIDTHS = [4, 8, 16, 32, 64, 128];

/** @param {{value: EncodingTable, theme: Theme}} props */
function Encoding({ value, theme }) {
  const { kind, table, curves } = value;
  const [at, point] = useState(/** @type {number[] | null} */ (null));
  const [distance, setDistance] = useState(/** @type {number | null} */ (null));
  const shown = useMemo(
    () => (kind === "rotary" ? table.map((row) => row.map(Math.cos)) : table),
    [table],
  );
  const most = useMemo(() => Math.max(...shown.map(largest)), [shown]);
  const colour = useMemo(
    () => (/** @type {number} */ x) => signedColour(x / most, theme),
    [most, theme],
  );
  const cell = kind === "alibi" ? 34 : 6;
  const [i, m] = at
    ? [clamp(at[0], 0, shown.length - 1), clamp(at[1], 0, shown[0].length - 1)]
    : [0, 0];
  const labels = shown.map((_, row) => (kind === "alibi" ? `head ${row}` : String(row)));
  const colours =
    kind === "alibi"
      ? ["var(--query)", "var(--bar)", "var(--key)"]
      : ["var(--query)", "var(--key)"];
  return (
    <>
      <div class="two-panels" style={{ marginTop: "16px" }}>
        <section class="card panel">
          <h3>{KINDS[kind].table}</h3>
          <Matrix
            rows={shown}
            labels={labels}
            name="encoding"
            colour={colour}
            cell={cell}
            at={at && [i, m]}
            point={(/** @type {number} */ row, /** @type {number} */ column) =>
              point([row, column])
            }
          />
          <SignedScale most={most} theme={theme} />
          <output class="figures" style={{ minHeight: "2.4em" }}>
            {at && readTable(value, i, m)}
          </output>
        </section>
        <section class="card panel">
          <h3>{KINDS[kind].curve}</h3>
          <LinePlot
            x={curves[0].numbers.map((_, one) => one)}
            axis="distance"
            name={KINDS[kind].curve}
            at={distance}
            point={setDistance}
            curves={curves.map((curve, one) => ({
              ...curve,
              colour: colours[one],
              dashed: kind !== "alibi" && one > 0,
            }))}
          />
          <p>{KINDS[kind].look}</p>
          {kind !== "alibi" && (
            <p class="checked">
              Over all pairs of 64 positions, numbers of the same distance differ by at most{" "}
              {short(value.difference, 2)}: rounding.
            </p>
          )}
        </section>
      </div>
      <p class="soft" style={{ fontSize: "13.5px" }}>
        In the terminal: <code>telescope explain --example positions</code>. In Python:{" "}
        <code>ts.sinusoidal</code>, <code>ts.rotary</code>, <code>ts.alibi</code>. A sentence of
        your own shows what its model does for positions.
      </p>
    </>
  );
}

/** @type {(value: EncodingTable, i: number, m: number) => string} */
function readTable({ kind, table, d }, i, m) {
  const x = table[i][m];
  if (kind === "alibi") return `head ${i}, distance ${m}: ${full(x)}`;
  if (kind === "rotary")
    return `position ${i}, pair ${m}: angle ${full(x)} rad, ${short(x / (2 * Math.PI), 3)} turns`;
  return `position ${i}, feature ${m}: ${m % 2 ? "cos" : "sin"}(${i} / 10000^(${m - (m % 2)}/${d})) = ${full(x)}`;
}

/* ---- of a model ---- */

/** @param {ScreenProps} props */
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

/** @type {Record<string, any>} */
const DOES = {
  sinusoidal: (
    <>
      This model <b>adds sines and cosines</b> to every embedding, once, before its first layer.
    </>
  ),
  learned: (
    <>
      This model has <b>learnt one vector for each position</b> and adds it to the embedding, once,
      before its first layer.
    </>
  ),
  rotary: (
    <>
      This model <b>rotates queries and keys</b> in every layer, by an angle that grows with the
      position. Nothing is added to the embedding.
    </>
  ),
  none: (
    <>
      This model <b>adds nothing</b> for positions. What a word may see, its mask, is all that it
      knows of the order.
    </>
  ),
  unknown:
    "This recording does not say what the model does for positions. What can be measured is how its scores depend on the distance.",
};

/**
 * @param {ScreenProps & {model: EncodingAnswer, row: PositionsAnswer, words: TokenRange, keyWords: TokenRange, i: number}} props
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
            <b>added to every score</b>.
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
            {headName(attention, state.head)}: weights and scores by distance, measured on this text
          </h3>
          <ByDistance model={model} theme={theme} />
        </section>
      </div>
    </>
  );
}

/** @param {{model: EncodingAnswer, row: PositionsAnswer, word: string, i: number, theme: Theme, words: TokenRange}} props */
function Added({ model, row, word, i, theme, words }) {
  const added = /** @type {NonNullable<EncodingAnswer["added"]>} */ (model.added);
  const own = /** @type {NonNullable<PositionsAnswer["added"]>} */ (row.added);
  const [m, point] = useState(/** @type {number | null} */ (null));
  const [at, setAt] = useState(/** @type {number[] | null} */ (null));
  const [place, setPlace] = useState(/** @type {number | null} */ (null));
  const read = own.embedded.map((x, feature) => x + own.position[feature]);
  const most = largest([...own.embedded, ...own.position, ...read]);
  const mostAdded = useMemo(() => Math.max(...added.table.map(largest)), [added]);
  const colour = useMemo(
    () => (/** @type {number} */ x) => signedColour(x / mostAdded, theme),
    [mostAdded, theme],
  );
  /** @type {(label: any, numbers: number[], name: string) => any} */
  const strip = (label, numbers, name) => (
    <>
      <span class="name">{label}</span>
      <Vector numbers={numbers} name={name} theme={theme} most={most} marked={m} point={point} />
    </>
  );
  const cell = clamp(Math.floor(300 / added.table.length), 5, 22);
  const labels = words.tokens.slice(0, added.table.length);
  return (
    <>
      <section class="card panel">
        <h3>
          what is added to the embedding of <span class="q">{clipped(word, 40)}</span>, position {i}
        </h3>
        <div class="strip">
          {strip("word", own.embedded, "embedding")}
          {strip("+ position", own.position, "position")}
          {strip("= x", read, "embedding plus position")}
        </div>
        <SignedScale
          most={most}
          theme={theme}
          words={`length ${short(norm(own.embedded), 3)} + ${short(norm(own.position), 3)} → ${short(norm(read), 3)}; cos(embedding, x) = ${short(cosine(own.embedded, read), 3)}`}
        />
        <output class="figures" style={{ minHeight: "1.5em" }}>
          {m !== null &&
            `feature ${m}: ${full(own.embedded[m])} + ${full(own.position[m])} = ${full(read[m])}`}
        </output>
      </section>
      <div class="two-panels" style={{ marginTop: "18px" }}>
        <section class="card panel">
          <h3>
            what is added to each word: a row for each position, a column for each of{" "}
            {count(added.features)} features
          </h3>
          <Matrix
            rows={added.table}
            labels={labels}
            name="encoding"
            colour={colour}
            cell={cell}
            at={at}
            chosen={i}
            point={(/** @type {number} */ a, /** @type {number} */ b) => setAt([a, b])}
          />
          <SignedScale most={mostAdded} theme={theme} />
          <output class="figures" style={{ minHeight: "1.5em" }}>
            {at &&
              `position ${at[0]}, feature ${added.shown[at[1]]}: ${full(added.table[at[0]][at[1]])}`}
          </output>
        </section>
        <section class="card panel">
          <h3>the dot product of this position with every other</h3>
          <LinePlot
            x={own.dots.map((_, j) => j - i)}
            axis="distance"
            name="dot products of positions"
            at={place}
            point={setPlace}
            marks={
              words.tokens.length === own.dots.length
                ? words.tokens.map((token) => clipped(token, 24))
                : undefined
            }
            curves={[{ name: "position · position", numbers: own.dots, colour: "var(--query)" }]}
          />
          <p>
            {model.kind === "sinusoidal"
              ? "For sines and cosines it depends on the distance alone, and falls on both sides."
              : "Nothing makes a learnt position similar to its neighbours but the training."}
          </p>
        </section>
      </div>
    </>
  );
}

/** @param {{model: EncodingAnswer, words: TokenRange, theme: Theme, i: number}} props */
function Angles({ model, words, theme, i }) {
  const { radians, pairs } = /** @type {NonNullable<EncodingAnswer["angles"]>} */ (model.angles);
  const [at, setAt] = useState(/** @type {number[] | null} */ (null));
  const [distance, setDistance] = useState(/** @type {number | null} */ (null));
  const n = Math.min(64, words.n);
  const rows = useMemo(
    () => Array.from({ length: n }, (_, p) => radians.map((angle) => Math.cos(p * angle))),
    [radians, n],
  );
  const colour = useMemo(() => (/** @type {number} */ x) => signedColour(x, theme), [theme]);
  const scores = useMemo(() => rows.map((row) => sum(row) / row.length), [rows]);
  const cell = clamp(Math.floor(300 / n), 5, 22);
  return (
    <div class="two-panels">
      <section class="card panel">
        <h3>
          the cosine of the angle: a row for each position, a column for each of {radians.length}{" "}
          pairs of features
        </h3>
        <Matrix
          rows={rows}
          labels={words.tokens.slice(0, n)}
          name="angles"
          colour={colour}
          cell={cell}
          at={at}
          chosen={i}
          point={(/** @type {number} */ a, /** @type {number} */ b) => setAt([a, b])}
        />
        <SignedScale
          most={1}
          theme={theme}
          words={
            pairs === "halves"
              ? `a pair: feature m and m + ${radians.length}`
              : "a pair: neighbouring features"
          }
        />
        <output class="figures" style={{ minHeight: "1.5em" }}>
          {at && `position ${at[0]}, pair ${at[1]}: ${full(at[0] * radians[at[1]])} rad`}
        </output>
      </section>
      <section class="card panel">
        <h3>the score of two equal vectors of length 1, by their distance</h3>
        <LinePlot
          x={scores.map((_, one) => one)}
          axis="distance"
          name="rotated scores"
          at={distance}
          point={setDistance}
          curves={[{ name: "q · k", numbers: scores, colour: "var(--query)" }]}
        />
        <p>
          Both are rotated; what is left in q·k is the difference of their angles: the distance.
        </p>
      </section>
    </div>
  );
}

/** @param {{row: PositionsAnswer, i: number, word: string}} props */
function Biases({ row, i, word }) {
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  const numbers = /** @type {JsonNumber[]} */ (row.biases)
    .map(toNumber)
    .map((x) => (Number.isFinite(x) ? x : 0));
  return (
    <section class="card panel">
      <h3>
        what is added to the scores of <span class="q">{clipped(word, 40)}</span>
      </h3>
      <LinePlot
        x={numbers.map((_, j) => j - i)}
        axis="distance"
        name="bias by distance"
        at={at}
        point={setAt}
        marks={row.tokens.map((token) => clipped(token, 24))}
        curves={[{ name: "bias", numbers, colour: "var(--query)" }]}
      />
    </section>
  );
}

/**
 * The weights of one query without positions (hollow bars) and with them (filled), by word.
 * @param {{row: PositionsAnswer, keyWords: TokenRange | null, theme: Theme}} props
 */
function BeforeAndAfter({ row, keyWords, theme }) {
  const without = /** @type {PositionsAnswer["with"]} */ (row.without);
  const rows = joinRows(row.tokens, [without, row.with], keyWords);
  const change = Math.max(...rows.map((one) => Math.abs(one.weights[1] - one.weights[0])));
  return (
    <>
      <table class="ledger compared-rows">
        <caption class="hidden">
          scores and weights without positions (hollow bars) and with them (filled)
        </caption>
        <thead>
          <tr>
            <th scope="col">key</th>
            <th scope="col">score without</th>
            <th scope="col">with</th>
            <th scope="col">weight without</th>
            <th scope="col" class="now">
              with
            </th>
            <th scope="col" class="share">
              <span class="ends">
                <span>0</span>
                <span>1</span>
              </span>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((one) => {
            const [before, after] = one.weights;
            const colours = one.weights.map((w) => css(weightColour(w, theme)));
            return (
              <tr class={change > 1e-9 && Math.abs(after - before) === change ? "chosen" : ""}>
                <td>{clipped(one.name, 24)}</td>
                <td class="was" title={full(one.scores[0])}>
                  {short(one.scores[0], 3)}
                </td>
                <td class="was" title={full(one.scores[1])}>
                  {short(one.scores[1], 3)}
                </td>
                <td class="was" title={full(before)}>
                  {short(before, 3)}
                </td>
                <td class="now" title={full(after)}>
                  {short(after, 3)}
                </td>
                <td class="share">
                  <svg
                    class="meter"
                    viewBox="0 0 100 10"
                    preserveAspectRatio="none"
                    aria-hidden="true"
                  >
                    <rect
                      x="0"
                      y="0.5"
                      height="4"
                      width={Math.max(0.3, 100 * before)}
                      fill="none"
                      stroke={colours[0]}
                      stroke-width="1.5"
                      vector-effect="non-scaling-stroke"
                    />
                    <rect
                      x="0"
                      y="5.5"
                      height="4"
                      width={Math.max(0.3, 100 * after)}
                      fill={colours[1]}
                    />
                  </svg>
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
      <p class="soft" style={{ fontSize: "13.5px" }}>
        The same head, once as the model ran, once as if it did not know where words are. Two equal
        words then have equal scores. Positions move{" "}
        {percent(sum(rows.map((one) => Math.abs(one.weights[1] - one.weights[0]))) / 2)} of the
        weight.
      </p>
    </>
  );
}

/**
 * Return scores and weights by word where words are known: weights are summed, a score is that of the strongest piece.
 * @param {string[]} tokens
 * @param {PositionsAnswer["with"][]} parts
 * @param {TokenRange | null} keyWords
 */
function joinRows(tokens, parts, keyWords) {
  const { words, names } = keyWords ?? {};
  const joined = words && names && words.length === tokens.length;
  const groups = joined
    ? names.map((name, word) => ({
        name,
        members: tokens.map((_, at) => at).filter((at) => words[at] === word),
      }))
    : tokens.map((name, at) => ({ name, members: [at] }));
  const last = parts[parts.length - 1].weights.map(toNumber);
  return groups.map(({ name, members }) => {
    const strongest = members.reduce((best, at) => (last[at] > last[best] ? at : best), members[0]);
    return {
      name,
      scores: parts.map((part) => toNumber(part.scores[strongest])),
      weights: parts.map((part) => sum(members.map((at) => toNumber(part.weights[at])))),
    };
  });
}

/** @param {{model: EncodingAnswer, theme: Theme}} props */
function ByDistance({ model }) {
  const { distances, scores, weights, pairs, queries } = model.by_distance;
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  const shared = { x: distances, axis: "distance", at, point: setAt };
  if (!distances.length) return <p class="soft">No query sees a key.</p>;
  return (
    <>
      <h3>mean weight</h3>
      <LinePlot
        {...shared}
        name="mean weight by distance"
        curves={[{ name: "weight", numbers: weights, colour: "var(--bar)" }]}
      />
      <h3>mean score</h3>
      <LinePlot
        {...shared}
        name="mean score by distance"
        curves={[{ name: "score", numbers: scores, colour: "var(--query)" }]}
      />
      <p class="soft" style={{ fontSize: "13.5px" }}>
        Key minus query: −1 is the word before. Means over {count(queries)} queries
        {at === null ? "" : `; ${count(pairs[at])} pairs at this distance`}.
      </p>
    </>
  );
}
