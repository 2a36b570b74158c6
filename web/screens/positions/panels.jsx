/**
 * What a model does for positions: what it adds, rotates or subtracts, and what that changes for a
 * query.
 */
import { useMemo, useState } from "preact/hooks";
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
import { Term } from "../../parts/term.jsx";
import { clipped } from "../../parts/text.js";
import { SignedScale, Vector } from "../../parts/vector.jsx";

/**
 * Embedding plus position: both vectors of a word, their sum, and the table of all positions.
 * @param {{model: EncodingAnswer, row: PositionsAnswer, word: string, i: number, theme: Theme,
 *   words: TokenRange}} props
 */
export function Added({ model, row, word, i, theme, words }) {
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
          words={
            `length ${short(norm(own.embedded), 3)} + ${short(norm(own.position), 3)} → ` +
            `${short(norm(read), 3)}; ` +
            `cos(embedding, x) = ${short(cosine(own.embedded, read), 3)}`
          }
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
              `position ${at[0]}, feature ${added.shown[at[1]]}: ` +
                full(added.table[at[0]][at[1]])}
          </output>
        </section>
        <section class="card panel">
          <h3>
            the <Term name="dot product" /> of this position with every other
          </h3>
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

/**
 * By which angle each pair of features is rotated at each position.
 * @param {{model: EncodingAnswer, words: TokenRange, theme: Theme, i: number}} props
 */
export function Angles({ model, words, theme, i }) {
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
          the <Term name="cosine" /> of the angle: a row for each position, a column for each of{" "}
          {radians.length} pairs of features
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

/**
 * What is added to the scores of a query because of the distance.
 * @param {{row: PositionsAnswer, i: number, word: string}} props
 */
export function Biases({ row, i, word }) {
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
export function BeforeAndAfter({ row, keyWords, theme }) {
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
 * Return scores and weights by word where words are known: weights are summed, a score is that of
 * the strongest piece.
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

/**
 * The mean weight and score at each distance, over the queries of this text.
 * @param {{model: EncodingAnswer, theme: Theme}} props
 */
export function ByDistance({ model }) {
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
