/** A few curves over one axis. A place on the axis is chosen by mouse, finger or arrow keys. */
import { clamp, full, short } from "./numbers.js";

const WIDE = 100;
const HIGH = 60; // of the drawing, which is stretched to the page

/** A place on the axis, as text. @type {(x: number) => string} */
const round = (x) => (Number.isInteger(x) ? full(x) : short(x, 3));

/**
 * @typedef {{name: string, numbers: number[], colour: string, dashed?: boolean}} Curve
 */

/**
 * Curves over one axis. Pointing, or an arrow key, reads all curves at one place.
 * @param {{x: number[], curves: Curve[], name: string, axis: string, at: number | null, point: (at:
 *   number) => void, marks?: string[], low?: number}} props  `at` is an index into x, `marks` are
 *   names of its places, `low` is the lowest number that the axis must show
 */
export function LinePlot({ x, curves, name, axis, at, point, marks, low = 0 }) {
  const all = curves.flatMap((curve) => curve.numbers);
  const bottom = Math.min(low, ...all);
  const top = Math.max(low, ...all);
  const room = top - bottom || 1;
  const first = x[0];
  const last = x[x.length - 1];
  /** @type {(value: number) => number} */
  const across = (value) => (last === first ? WIDE / 2 : (WIDE * (value - first)) / (last - first));
  /** @type {(value: number) => number} */
  const up = (value) => HIGH - (HIGH * (value - bottom)) / room;
  /** @param {PointerEvent & {currentTarget: Element}} event */
  const pointAt = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const value = first + ((event.clientX - box.left) / box.width) * (last - first);
    point(
      x.reduce(
        (best, one, place) => (Math.abs(one - value) < Math.abs(x[best] - value) ? place : best),
        0,
      ),
    );
  };
  /** @param {KeyboardEvent} event */
  const pressKey = (event) => {
    /** @type {Record<string, number>} */
    const steps = {
      ArrowRight: 1,
      ArrowUp: 1,
      ArrowLeft: -1,
      ArrowDown: -1,
      Home: -x.length,
      End: x.length,
    };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    point(clamp((at ?? -1) + step, 0, x.length - 1));
  };
  const place = at === null ? null : clamp(at, 0, x.length - 1);
  const said = (/** @type {number} */ one) =>
    `${axis} ${full(x[one])}${marks ? ` (${marks[one]})` : ""}: ` +
    curves.map((curve) => `${curve.name} ${full(curve.numbers[one])}`).join("; ");
  const zero = bottom < 0 && top > 0;
  return (
    <figure class="plot">
      <div class="plot-body">
        <span class="plot-ends">
          <span>{short(top, 3)}</span>
          {zero && (
            <span class="zero" style={{ top: `${(100 * up(0)) / HIGH}%` }}>
              0
            </span>
          )}
          <span>{short(bottom, 3)}</span>
        </span>
        <svg
          viewBox={`0 -1 ${WIDE} ${HIGH + 2}`}
          preserveAspectRatio="none"
          role="slider"
          tabindex={0}
          aria-label={name}
          aria-valuemin={0}
          aria-valuemax={x.length - 1}
          aria-valuenow={place ?? 0}
          aria-valuetext={place === null ? `${x.length} numbers` : said(place)}
          onPointerMove={pointAt}
          onPointerDown={pointAt}
          onKeyDown={pressKey}
          onFocus={() => at === null && point(0)}
        >
          <line
            x1="0"
            x2={WIDE}
            y1={up(zero ? 0 : bottom)}
            y2={up(zero ? 0 : bottom)}
            stroke="currentColor"
            stroke-opacity=".35"
            vector-effect="non-scaling-stroke"
          />
          {first < 0 && last > 0 && (
            <line
              x1={across(0)}
              x2={across(0)}
              y1="0"
              y2={HIGH}
              stroke="currentColor"
              stroke-opacity=".2"
              vector-effect="non-scaling-stroke"
            />
          )}
          {curves.map((curve) => (
            <path
              d={curve.numbers
                .map(
                  (value, one) =>
                    `${one ? "L" : "M"}${across(x[one]).toFixed(2)} ${up(value).toFixed(2)}`,
                )
                .join("")}
              fill="none"
              stroke={curve.colour}
              stroke-width="2"
              stroke-dasharray={curve.dashed ? "5 4" : undefined}
              vector-effect="non-scaling-stroke"
            />
          ))}
          {place !== null && (
            <line
              x1={across(x[place])}
              x2={across(x[place])}
              y1="0"
              y2={HIGH}
              stroke="currentColor"
              stroke-opacity=".6"
              vector-effect="non-scaling-stroke"
            />
          )}
        </svg>
      </div>
      <div class="axis-ends">
        <span>{round(first)}</span>
        <span>{axis}</span>
        <span>{round(last)}</span>
      </div>
      <figcaption>
        {curves.length > 1 && (
          <span class="legend">
            {curves.map((curve) => (
              <span>
                <svg width="26" height="8" aria-hidden="true">
                  <line
                    x1="0"
                    x2="26"
                    y1="4"
                    y2="4"
                    stroke={curve.colour}
                    stroke-width="2.5"
                    stroke-dasharray={curve.dashed ? "5 4" : undefined}
                  />
                </svg>{" "}
                {curve.name}
              </span>
            ))}
          </span>
        )}
        <output class="figures">
          {place === null
            ? " "
            : `${axis} ${round(x[place])}${marks ? ` (${marks[place]})` : ""}: ` +
              curves.map((curve) => short(curve.numbers[place])).join(" · ")}
        </output>
      </figcaption>
    </figure>
  );
}
