/** concat · W_O as a picture: what each head adds, and their sum. */
import { useState } from "preact/hooks";
import { count, full, largest, norm, percent, short, sum } from "../../parts/numbers.js";
import { SignedScale, Vector } from "../../parts/vector.jsx";

/** The colours of heads, one after the other; a label always stands beside them. */
const HEAD_COLOURS = ["--query", "--key", "--bar", "--value", "--warn"];
/** @param {number} at */
export const headColour = (at) => `var(${HEAD_COLOURS[at % HEAD_COLOURS.length]})`;

/**
 * The contexts of the heads side by side, each times its rows of W_O, and the sum of all parts,
 * which is added to x. One feature of the sum can be pointed at.
 * @param {{mixed: MixedHeads, theme: Theme}} props
 */
export function MixedHeads({ mixed, theme }) {
  const { heads, contexts, parts, bias } = mixed;
  // A feature of what is added, or a number in the context of one head.
  const [m, setFeature] = useState(/** @type {number | null} */ (null));
  const [own, setOwn] = useState(/** @type {{at: number, m: number} | null} */ (null));
  /** @param {number | null} feature */
  const point = (feature) => {
    setOwn(null);
    setFeature(feature);
  };
  const lengths = parts.map(norm);
  const all = sum(lengths) || 1;
  const most = largest([...parts.flat(), ...mixed.sum]);
  const mostContext = largest(contexts.flat());
  const d = contexts[0].length;
  const shares = heads.map((head, at) => `head ${head}: ${percent(lengths[at] / all)}`).join(", ");
  /** @param {number[]} numbers @param {string} name @param {boolean} [bars] */
  const strip = (numbers, name, bars = false) => (
    <Vector {...{ numbers, name, theme, most, bars, point }} marked={m} />
  );
  return (
    <section class="card mixed" aria-label="the heads, mixed by W_O">
      <h3>
        The heads side by side, times W<sub>O</sub>
      </h3>
      <div class="joined" role="group" aria-label={`${heads.length} contexts of ${d} numbers`}>
        {contexts.map((numbers, at) => (
          <div style={{ borderColor: headColour(at) }}>
            <Vector
              {...{ numbers, theme, most: mostContext }}
              point={(number) => setOwn({ at, m: number })}
              marked={own?.at === at ? own.m : null}
              name={`context of head ${heads[at]}`}
            />
            <small style={{ color: headColour(at) }}>head {heads[at]}</small>
          </div>
        ))}
      </div>
      <p class="soft">
        W<sub>O</sub> has {d} rows for each head. A head’s numbers times its rows are its part of
        what is added, {count(mixed.sum.length)} numbers:
      </p>
      <div class="strip">
        {parts.map((numbers, at) => (
          <>
            <span class="name" style={{ color: headColour(at) }}>
              head {heads[at]}
              <br />
              <span class="of">{short(lengths[at], 3)}</span>
            </span>
            {strip(numbers, `part of head ${heads[at]}`)}
          </>
        ))}
        {bias && (
          <>
            <span class="name soft">bias</span>
            {strip(bias, "bias of W_O")}
          </>
        )}
        <span style={{ gridColumn: "1 / -1", borderTop: "1.5px solid", margin: "6px 0 4px" }} />
        <span class="name">
          is added
          <br />
          <span class="of soft">Σ, {short(norm(mixed.sum), 3)}</span>
        </span>
        {strip(mixed.sum, "the sum, which is added to x", true)}
      </div>
      <SignedScale most={most} theme={theme} words="below each name, the length of its vector" />
      <div class="shares" role="img" aria-label={`shares of the lengths: ${shares}`}>
        {heads.map((head, at) => (
          <span
            style={{ flexGrow: lengths[at] / all, background: headColour(at) }}
            title={`head ${head}: ${full(lengths[at])}`}
          >
            {lengths[at] / all > 0.08 ? `${head}: ${percent(lengths[at] / all)}` : ""}
          </span>
        ))}
      </div>
      <output class="readout" aria-live="polite">
        {own ? (
          <>
            <span style={{ color: headColour(own.at) }}>head {heads[own.at]}</span>, number {own.m}{" "}
            of its context: <b>{full(contexts[own.at][own.m])}</b>
          </>
        ) : m === null ? (
          <span class="soft">Point at a feature to see which head it comes from.</span>
        ) : (
          <>
            feature {m}:{" "}
            {parts.map((part, at) => (
              <>
                {at ? " + " : ""}
                <span style={{ color: headColour(at) }} title={`head ${heads[at]}`}>
                  {part[m] < 0 ? `(${short(part[m], 3)})` : short(part[m], 3)}
                </span>
              </>
            ))}
            {bias ? ` + ${short(bias[m], 3)} (bias)` : ""} = <b>{full(mixed.sum[m])}</b>
          </>
        )}
      </output>
    </section>
  );
}
