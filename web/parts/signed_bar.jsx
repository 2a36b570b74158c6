/** A signed number as text and as a bar from zero, for tables of what is added and taken off. */
import { css, signedColour } from "./colour.js";
import { short } from "./numbers.js";

/** Return a number with its sign, in three digits. @param {number} x */
export const signed = (x) => `${x > 0 ? "+" : ""}${short(x, 3)}`;

/**
 * A bar to the left of zero, or to the right of it.
 * @param {{x: number, most: number, theme: Theme, zero?: number}} props  `most` is the number of
 *   the longest bar, and `zero` where zero is, in percent of the width
 */
export function SignedBar({ x, most, theme, zero = 50 }) {
  const room = x < 0 ? zero : 100 - zero;
  const long = most ? (room * Math.abs(x)) / most : 0;
  return (
    <svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <line
        x1={zero}
        x2={zero}
        y1="-2"
        y2="12"
        stroke="currentColor"
        stroke-opacity=".4"
        vector-effect="non-scaling-stroke"
      />
      <rect
        x={x < 0 ? zero - long : zero}
        y="1"
        width={Math.max(long, 0.3)}
        height="8"
        fill={css(signedColour(Math.sign(x), theme))}
      />
    </svg>
  );
}
