/** Why √d: random queries and keys, with as many features as the slider says. */
import { useAnswer } from "../answers.js";
import { Answered } from "../parts/answered.jsx";
import { css, weightColour } from "../parts/colour.js";
import { count, full, percent, short } from "../parts/numbers.js";
import { Term } from "../parts/term.jsx";
import { shared } from "../state/fields.js";

export const title = "Why √d";
export const shows = "why scores are divided by √d";
export const needs = null;
export const subject = "nothing";
/** @type {ScreenModule["isOffered"]} */
export const isOffered = (run) => run?.kind === "example";
export const fields = {
  ...shared("features"),
};
export { Variance as view };

/** The slider has the powers of two and a few numbers between them. */
export const STOPS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];

/** The same scores before and after the division, side by side. @param {ScreenProps} props */
function Variance({ state, go, answers, theme }) {
  const d = Math.min(512, Math.max(1, Math.round(state.features)));
  const found = useAnswer(answers, "variance", { d });
  const at = STOPS.findIndex((stop) => stop >= d);
  return (
    <>
      <h2>Why scores are divided by √d</h2>
      <p class="lede">
        Random queries and keys with <Term name="d" /> features, each number drawn from a normal
        distribution. A dot product adds up d products, so it varies the more, the more there are.
      </p>
      <div class="slide" style={{ margin: "18px 0", gridTemplateColumns: "auto minmax(0, 1fr)" }}>
        <output class="figures" style={{ fontSize: "20px", minWidth: "8ch" }}>
          d = {d}
        </output>
        <input
          type="range"
          min="0"
          max={STOPS.length - 1}
          step="1"
          value={at}
          aria-label="d, the number of features"
          aria-valuetext={`d = ${d}`}
          onInput={(event) => go({ features: STOPS[Number(event.currentTarget.value)] }, false)}
        />
      </div>
      <Answered answer={found}>
        {(/** @type {any} */ value) => (
          <>
            <div class="two-panels">
              <Panel
                theme={theme}
                part={value.dot}
                edge={value.edge}
                title="q·k"
                kind="query"
                said={
                  <>
                    grows with d: <Term name="variance" /> <b>{short(value.dot.variance, 3)}</b>,
                    near d
                  </>
                }
              />
              <Panel
                theme={theme}
                part={value.divided}
                edge={value.edge}
                title={<>q·k / √{d}</>}
                kind="key"
                said={
                  <>
                    stays near 1, whatever d is: <Term name="variance" />{" "}
                    <b>{short(value.divided.variance, 3)}</b>
                  </>
                }
              />
            </div>
            <p class="soft" style={{ fontSize: "13.5px" }}>
              512 random queries with 8 keys each, from one fixed seed; a smaller d uses the first
              features of a larger one. Both histograms have one scale. The <Term name="gradient" />{" "}
              is Σ w(1 − w) of a query’s weights, the trace of softmax’s derivative: 0 where one key
              has all the weight. In the terminal: <code>telescope explain --example variance</code>
              .
            </p>
          </>
        )}
      </Answered>
    </>
  );
}

/**
 * The histogram of the scores, and the weights of one query.
 * @param {{part: any, edge: number, title: any, kind: string, said: any, theme: Theme}} props
 */
function Panel({ part, edge, title, kind, said, theme }) {
  const { histogram, weights, scores } = part;
  const most = 2000; // counts; at d = 1, one bin holds about 1,900 of the 4,096 scores
  const wide = histogram.length;
  return (
    <section class="card panel" data-panel={kind}>
      <h3 class={kind === "query" ? "q" : "k"}>{title}</h3>
      <p>{said}</p>
      <svg
        class="histogram"
        viewBox={`0 -2 ${wide} 64`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`histogram of the scores, from ${-Math.floor(edge)} to ${Math.floor(edge)}`}
      >
        <line
          x1="0"
          x2={wide}
          y1="60"
          y2="60"
          stroke="currentColor"
          stroke-opacity=".4"
          vector-effect="non-scaling-stroke"
        />
        <line
          x1={wide / 2}
          x2={wide / 2}
          y1="0"
          y2="60"
          stroke="currentColor"
          stroke-opacity=".2"
          vector-effect="non-scaling-stroke"
        />
        {histogram.map(
          (/** @type {number} */ n, /** @type {number} */ at) =>
            n > 0 && (
              <rect
                x={at + 0.06}
                width=".88"
                y={60 - 60 * Math.sqrt(Math.min(1, n / most))}
                height={60 * Math.sqrt(Math.min(1, n / most))}
                fill={`var(--${kind})`}
              />
            ),
        )}
      </svg>
      <div class="axis-ends">
        <span>−{Math.floor(edge)}</span>
        <span>0</span>
        <span>{Math.floor(edge)}</span>
      </div>
      <h3>softmax of one query with eight keys</h3>
      <div
        class="eight"
        role="img"
        aria-label={`weights: ${weights.map((/** @type {number} */ w) => percent(w)).join(", ")}`}
      >
        {weights.map((/** @type {number} */ w, /** @type {number} */ at) => (
          <div title={`score ${full(scores[at])}, weight ${full(w)}`}>
            <span class="column">
              <i style={{ height: `${100 * w}%`, background: css(weightColour(w, theme)) }} />
            </span>
            <small>{w >= 0.0005 ? w.toFixed(w >= 0.0995 ? 2 : 3).replace(/^0/, "") : "0"}</small>
          </div>
        ))}
      </div>
      <dl class="facts">
        <dt>largest of the eight weights, on average</dt>
        <dd title={full(part.largest)}>{short(part.largest, 3)}</dd>
        <dt>gradient, on average</dt>
        <dd title={full(part.gradient)}>
          <b>{short(part.gradient, 3)}</b>
        </dd>
        <dt>scores</dt>
        <dd>
          {count(histogram.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0))}
        </dd>
      </dl>
    </section>
  );
}
