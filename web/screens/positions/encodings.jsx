/**
 * Position encodings without a model: what is added or rotated, and how alike two positions are.
 */
import { useMemo, useState } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered } from "../../parts/answered.jsx";
import { signedColour } from "../../parts/colour.js";
import { LinePlot } from "../../parts/line_plot.jsx";
import { Matrix } from "../../parts/matrix.jsx";
import { clamp, full, largest, short } from "../../parts/numbers.js";
import { SignedScale } from "../../parts/vector.jsx";

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
    look: (
      <>
        From position 0 and from position 20 the curve is the same: the dot product of two positions
        depends on their distance alone. Near positions are similar, distant ones are not.
      </>
    ),
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
    look: (
      <>
        A rotation of both by the same angle changes no score. What is left in q·k is the difference
        of the angles: the distance.
      </>
    ),
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
    look: (
      <>
        Head 0 sees its neighbours alone, head 7 nearly the whole text. Nothing is learnt, and a
        text longer than in training is no exception.
      </>
    ),
  },
};

/**
 * Three encodings to choose from, with as many features as the slider says.
 * @param {ScreenProps} props
 */
export function Encodings({ state, go, answers, theme }) {
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

/** The numbers of features that the slider offers. */
const WIDTHS = [4, 8, 16, 32, 64, 128];

/**
 * An encoding as a table of positions and features, and as curves over the distance.
 * @param {{value: EncodingTable, theme: Theme}} props
 */
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

/**
 * Return what a cell of the table is, as a formula with its value.
 * @type {(value: EncodingTable, i: number, m: number) => string}
 */
function readTable({ kind, table, d }, i, m) {
  const x = table[i][m];
  if (kind === "alibi") return `head ${i}, distance ${m}: ${full(x)}`;
  if (kind === "rotary")
    return `position ${i}, pair ${m}: angle ${full(x)} rad, ${short(x / (2 * Math.PI), 3)} turns`;
  const wave = `${m % 2 ? "cos" : "sin"}(${i} / 10000^(${m - (m % 2)}/${d}))`;
  return `position ${i}, feature ${m}: ${wave} = ${full(x)}`;
}
