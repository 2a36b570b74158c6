/** What follows from the numbers of a worked example: weights and context, beside its cells. */
import { css, signedColour, weightColour } from "../../parts/colour.js";
import { full, largest, short, sum } from "../../parts/numbers.js";
import { visible } from "../../parts/text.js";

/**
 * The weights of the chosen query and its context as bars, which move while a number is dragged.
 * Weights are drawn on 0 to 1, and the context on a scale of whole steps, so that bars can be
 * compared.
 * @param {Pick<StepProps, "trace" | "row" | "theme">} props
 */
export function Live({ trace, row, theme }) {
  const most = wholeScale(Math.max(1, largest(trace.context)));
  const share = Math.max(1, ...row.weights.map(Math.abs).filter(Number.isFinite));
  const isSigned = row.weights.some((weight) => weight < 0);
  return (
    <section class="live" aria-label={`weights and context of ${visible(trace.token)}`}>
      <div>
        <h3>
          weights of <span class="q">{visible(trace.token)}</span>
        </h3>
        <table class="live-bars" data-live="weights">
          <caption class="hidden">from 0 to {short(share, 3)}</caption>
          <tbody>
            {row.tokens.map((token, at) => (
              <Bar
                name={visible(token)}
                kind="k"
                x={row.weights[at]}
                most={share}
                isSigned={isSigned}
                colour={css(weightColour(Math.abs(row.weights[at]), theme))}
              />
            ))}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row">sum</th>
              <td class="soft">
                <Ends low={isSigned ? -share : 0} high={share} />
              </td>
              <td class="figures" title={full(sum(row.weights))}>
                {short(sum(row.weights))}
              </td>
            </tr>
          </tfoot>
        </table>
      </div>
      <div>
        <h3>its context, Σ weight × value</h3>
        <table class="live-bars" data-live="context">
          <caption class="hidden">
            from {short(-most, 3)} to {short(most, 3)}
          </caption>
          <tbody>
            {trace.context.map((x, at) => (
              <Bar
                name={`feature ${at}`}
                kind="soft"
                x={x}
                most={most}
                isSigned
                colour={css(signedColour(Math.sign(x), theme))}
              />
            ))}
          </tbody>
          <tfoot>
            <tr>
              <td />
              <td class="soft">
                <Ends low={-most} high={most} />
              </td>
              <td />
            </tr>
          </tfoot>
        </table>
      </div>
    </section>
  );
}

/**
 * A named number with its bar: from the left, or from the middle where numbers have signs.
 * @param {{name: string, kind: string, x: number, most: number, isSigned: boolean, colour:
 *   string}} props
 */
function Bar({ name, kind, x, most, isSigned, colour }) {
  const long = Number.isFinite(x) ? (Math.abs(x) / most) * (isSigned ? 50 : 100) : 0;
  return (
    <tr>
      <th scope="row" class={kind}>
        {name}
      </th>
      <td class="bar-room">
        <svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
          {isSigned && (
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
          <rect
            x={isSigned ? (x < 0 ? 50 - long : 50) : 0}
            y="1"
            width={Math.max(long, 0.3)}
            height="8"
            fill={colour}
          />
        </svg>
      </td>
      <td class="figures" title={full(x)}>
        {short(x)}
      </td>
    </tr>
  );
}

/** Both ends of a scale. @param {{low: number, high: number}} props */
const Ends = ({ low, high }) => (
  <span class="ends">
    <span>{short(low, 3)}</span>
    <span>{short(high, 3)}</span>
  </span>
);

/** Return the smallest of 1, 2, 5, 10, 20, … that is not below x. @param {number} x */
function wholeScale(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return power * ([1, 2, 5].find((step) => step * power >= x) ?? 10);
}
