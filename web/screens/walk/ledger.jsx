/** The ledger of the walk: a row for each key, with its scores, their changes and its weight. */
import { Ask } from "../../parts/asked.jsx";
import { css, signedColour, weightColour } from "../../parts/colour.js";
import { count, full, largest, short, sum, weight, weightScale } from "../../parts/numbers.js";
import { specialProps } from "../../parts/special.jsx";
import { Term } from "../../parts/term.jsx";
import { visible } from "../../parts/text.js";
import { Vector } from "../../parts/vector.jsx";

/** The heads of the columns. @type {Record<string, string>} */
const HEADINGS = {
  capped: "capped",
  biased: "+ bias",
  mask: "masked",
  powers: "eˢ⁻ᵐᵃˣ",
  softmax: "weight",
};
/** The columns from left to right; a step shows those up to its own. */
const ORDER = ["scores", "scaled", "capped", "biased", "mask", "softmax"];

/**
 * The scores as a table: a row for each key, a column for each step up to this one.
 * @param {StepProps} props
 */
export function Ledger({ trace, row, step, j, m, point, pick, theme, usual, labels, why }) {
  const headings = { ...labels, ...HEADINGS };
  const columns = ORDER.slice(0, ORDER.indexOf(step) + 1).filter(
    (name) => row.steps[name] && (name !== "mask" || row.masks || step === "mask"),
  );
  const numbers = row.steps[step];
  const { powers } = row;
  const softmax = step === "softmax";
  const most = softmax ? weightScale(row.weights) : Math.max(largest(row.steps.scores), 1e-12);
  const exponential = softmax && usual.softmax;
  // A phone leaves out the columns before the last two.
  /** @type {(name: string, at: number) => string} */
  const age = (name, at) =>
    name === step ? "now" : `was ${at < columns.length - 2 || softmax ? "before" : ""}`;
  return (
    <div class="stack">
      <table class="ledger">
        <caption class="hidden">every key, with its numbers up to this step</caption>
        <thead>
          <tr>
            <th scope="col">key</th>
            {columns.map((name, at) => (
              <>
                <th
                  scope="col"
                  class={name === step ? "now" : at < columns.length - 2 || softmax ? "before" : ""}
                >
                  {headings[name]}
                </th>
                {exponential && at === columns.length - 2 && (
                  <th scope="col">
                    <Term name="e^(s − max)">{headings.powers}</Term>
                  </th>
                )}
              </>
            ))}
            <th scope="col" class="share">
              <span class="hidden">as a bar, </span>
              <span class="ends">
                <span>{softmax ? "0" : short(-most, 3)}</span>
                {softmax ? "" : <span>0</span>}
                <span>{short(most, 3)}</span>
              </span>
            </th>
          </tr>
        </thead>
        <tbody>
          {row.tokens.map((token, at) => (
            <tr
              key={row.keys[at]}
              class={at === j ? "chosen" : ""}
              // On the way to an open panel the pointer chooses no other key.
              onPointerEnter={() => !why?.open && pick(at)}
            >
              <td>
                <button
                  type="button"
                  {...specialProps(token, "pick")}
                  aria-pressed={at === j}
                  onClick={() => pick(at)}
                  onFocus={() => pick(at)}
                >
                  {visible(token)}
                </button>
                {row.members[at].length > 1 && (
                  <small class="soft"> {row.members[at].length} pieces</small>
                )}
                {why && at === j && (
                  <Ask question="why" {...why} label={`why ${visible(token)}?`}>
                    why?
                  </Ask>
                )}
              </td>
              {columns.map((name, place) => {
                const x = row.steps[name][at];
                const hidden = name === "mask" && x === -Infinity;
                return (
                  <>
                    <td title={full(x)} class={`${age(name, place)} ${hidden ? "hatch" : ""}`}>
                      {name === "softmax" ? weight(x) : short(x)}
                    </td>
                    {exponential && place === columns.length - 2 && (
                      <td title={full(powers[at])} class="was">
                        {short(powers[at])}
                      </td>
                    )}
                  </>
                );
              })}
              <td class={`share ${numbers[at] === -Infinity ? "hatch" : ""}`}>
                <Meter x={numbers[at]} most={most} share={softmax} theme={theme} />
              </td>
            </tr>
          ))}
          {trace.rest.keys > 0 && (
            <tr>
              <td class="soft rest">{count(trace.rest.keys)} other keys together</td>
              {columns.slice(0, -1).map((_, at) => (
                <td class={at < columns.length - 2 || softmax ? "before" : ""} />
              ))}
              {exponential && <td />}
              <td class="now">{softmax ? weight(trace.rest.weight) : ""}</td>
              <td />
            </tr>
          )}
        </tbody>
        {softmax && (
          <tfoot>
            <tr>
              <td>sum</td>
              {columns.slice(0, -1).map((_, at) => (
                <>
                  <td class="before" />
                  {exponential && at === columns.length - 2 && (
                    <td title={full(sum(powers))}>{trace.rest.keys ? "" : short(sum(powers))}</td>
                  )}
                </>
              ))}
              <td title={full(sum(row.weights) + trace.rest.weight)}>
                {short(sum(row.weights) + trace.rest.weight)}
              </td>
              <td />
            </tr>
          </tfoot>
        )}
      </table>
      {step === "scores" && (
        <Products trace={trace} row={row} j={j} m={m} point={point} theme={theme} />
      )}
    </div>
  );
}

/**
 * A number as a bar: from the left for shares, from the middle for signed numbers.
 * @param {{x: number, most: number, share: boolean, theme: Theme}} props
 */
function Meter({ x, most, share, theme }) {
  if (!Number.isFinite(x) || !most) return null;
  const long = (Math.abs(x) / most) * (share ? 100 : 50);
  const left = share ? 0 : x < 0 ? 50 - long : 50;
  const colour = share ? weightColour(x, theme) : signedColour(Math.sign(x), theme);
  return (
    <svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      {!share && (
        <line
          x1="50"
          x2="50"
          y1="-2"
          y2="12"
          stroke="currentColor"
          stroke-opacity=".4"
          vector-effect="non-scaling-stroke"
        />
      )}
      <rect x={left} y="1" width={Math.max(long, 0.3)} height="8" fill={css(colour)} />
    </svg>
  );
}

/**
 * The products that sum to a score.
 * @param {Pick<StepProps, "trace" | "row" | "j" | "m" | "point" | "theme">} props
 */
function Products({ trace, row, j, m, point, theme }) {
  const terms = trace.terms[j];
  const factors = trace.factors;
  const q = factors?.query ?? [];
  const k = factors?.key[j] ?? [];
  const most = factors ? largest([...q, ...factors.key.flat()]) : 0;
  /** @type {(name: string, kind: string, numbers: number[], bars: boolean, top: number) => any} */
  const line = (name, kind, numbers, bars, top) => (
    <>
      <span class={`name ${kind}`}>{name}</span>
      <Vector
        numbers={numbers}
        name={`${name}, feature by feature`}
        theme={theme}
        most={top}
        bars={bars}
        marked={m}
        point={point}
      />
    </>
  );
  return (
    <div class="card">
      <h3>
        <span class="q">{visible(trace.token)}</span> ·{" "}
        <span class="k">{visible(row.tokens[j])}</span>: {terms.length}{" "}
        {factors ? "products" : "terms"} that sum to {short(row.steps.scores[j])}
      </h3>
      {trace.score !== "q·k" && (
        <p class="soft">
          The score is <span class="figures">{trace.score}</span>:{" "}
          {trace.score === "q·W·k"
            ? "here q is multiplied by W first, and then with k."
            : "each is one feature of it."}
        </p>
      )}
      <div class="strip" style={{ marginTop: "12px" }}>
        {factors && line("q", "q", q, false, most)}
        {factors && line("k", "k", k, false, most)}
        {line(factors ? "q × k" : "terms", "", terms, true, largest(trace.terms.flat()))}
      </div>
      <details class="products" style={{ marginTop: "10px" }}>
        <summary>all {terms.length} as numbers</summary>
        <ol>
          {terms.map((term, at) => (
            <li>
              <span>{at}</span>
              <span title={full(term)}>
                {factors ? `${short(q[at], 3)} × ${short(k[at], 3)} = ` : ""}
                {short(term, 3)}
              </span>
            </li>
          ))}
        </ol>
      </details>
    </div>
  );
}
