/** A signed number as text and as a bar from the middle, for tables of what is added and taken off. */
import { css, signedColour } from "./colour.js";
import { short } from "./numbers.js";

/** Return a number with its sign, in three digits. @param {number} x */
export const signed = (x) => `${x > 0 ? "+" : ""}${short(x, 3)}`;

/**
 * @param {{x: number, most: number, theme: Theme}} props  `most` is the number of the longest bar
 */
export function SignedBar({ x, most, theme }) {
  const long = most ? (50 * Math.abs(x)) / most : 0;
  return (
    <svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <line
        x1="50"
        x2="50"
        y1="-2"
        y2="12"
        stroke="currentColor"
        stroke-opacity=".4"
        vector-effect="non-scaling-stroke"
      />
      <rect
        x={x < 0 ? 50 - long : 50}
        y="1"
        width={Math.max(long, 0.3)}
        height="8"
        fill={css(signedColour(Math.sign(x), theme))}
      />
    </svg>
  );
}
