/**
 * A vector as a strip of coloured cells or of bars. A number is chosen by mouse, finger or arrow
 * keys.
 */
import { css, readableInk, signedColour } from "./colour.js";
import { FEW } from "./matrix.jsx";
import { clamp, full, largest, short } from "./numbers.js";

/**
 * A short vector shows its numbers as text; a long one is a strip of colours or bars.
 * @param {{numbers: number[], name: string, theme: Theme, most?: number, bars?: boolean, marked?:
 *   number | null, point: (m: number) => void, first?: number}} props  `most` is the number with
 *   the strongest colour, `first` the index of the first number, where the strip is a part of a
 *   longer vector
 */
export function Vector(props) {
  const {
    numbers,
    name,
    theme,
    most = largest(numbers),
    bars = false,
    marked = null,
    point,
    first = 0,
  } = props;
  const d = numbers.length;
  const own = marked !== null && marked >= first && marked < first + d ? marked - first : null;
  /** @param {PointerEvent & {currentTarget: Element}} event */
  const pointAt = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    point(first + clamp(Math.floor(((event.clientX - box.left) / box.width) * d), 0, d - 1));
  };
  /** @param {KeyboardEvent} event */
  const pressKey = (event) => {
    /** @type {Record<string, number>} */
    const steps = {
      ...{ ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 },
      ...{ PageUp: 8, PageDown: -8, Home: -d, End: d },
    };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    point(first + clamp((own ?? -1) + step, 0, d - 1));
  };
  if (d <= FEW && !bars)
    return (
      <div
        class="vector few"
        role="slider"
        tabindex={0}
        aria-label={name}
        aria-valuemin={first}
        aria-valuemax={first + d - 1}
        aria-valuenow={own === null ? first : own + first}
        aria-valuetext={
          own === null ? `${d} numbers` : `number ${own + first}: ${full(numbers[own])}`
        }
        onPointerMove={pointAt}
        onPointerDown={pointAt}
        onKeyDown={pressKey}
        onFocus={() => own === null && point(first)}
        style={{ gridTemplateColumns: `repeat(${d}, 1fr)` }}
      >
        {numbers.map((x, m) => {
          const colour = signedColour(most ? x / most : 0, theme);
          return (
            <span
              class={m === own ? "own" : ""}
              style={{ background: css(colour), color: readableInk(colour) }}
            >
              {short(x)}
            </span>
          );
        })}
      </div>
    );
  const height = bars ? 64 : 16;
  const middle = height / 2;
  const strip = (
    <svg
      class={`vector ${bars ? "tall" : ""}`}
      viewBox={`0 0 ${d} ${height}`}
      preserveAspectRatio="none"
      role="slider"
      tabindex={0}
      aria-label={name}
      aria-valuemin={first}
      aria-valuemax={first + d - 1}
      aria-valuenow={own === null ? first : own + first}
      aria-valuetext={
        own === null ? `${d} numbers` : `number ${own + first}: ${full(numbers[own])}`
      }
      onPointerMove={pointAt}
      onPointerDown={pointAt}
      onKeyDown={pressKey}
      onFocus={() => own === null && point(first)}
    >
      {bars && (
        <line
          x1="0"
          x2={d}
          y1={middle}
          y2={middle}
          stroke="currentColor"
          stroke-opacity=".35"
          vector-effect="non-scaling-stroke"
        />
      )}
      {numbers.map((x, m) => {
        const t = most ? x / most : 0;
        if (!bars)
          return <rect x={m} y="0" width="1" height={height} fill={css(signedColour(t, theme))} />;
        const tall = Math.abs(t) * (middle - 1);
        const hue = css(signedColour(Math.sign(t), theme));
        return (
          <rect
            x={m + 0.08}
            y={x < 0 ? middle : middle - tall}
            width=".84"
            height={Math.max(tall, 0.15)}
            fill={hue}
          />
        );
      })}
      {own !== null && (
        <rect
          x={own}
          y="0"
          width="1"
          height={height}
          fill="none"
          stroke="currentColor"
          stroke-width="2"
          vector-effect="non-scaling-stroke"
        />
      )}
    </svg>
  );
  if (d > FEW) return strip;
  return (
    <div>
      <div
        class="above-bars"
        aria-hidden="true"
        style={{ gridTemplateColumns: `repeat(${d}, minmax(0, 1fr))` }}
      >
        {numbers.map((x, m) => (
          <span class={m === own ? "own" : ""}>{short(x, d > 4 ? 3 : 4)}</span>
        ))}
      </div>
      {strip}
    </div>
  );
}

/**
 * The colours of signed numbers from -most to most.
 * @param {{most: number, theme: Theme, words?: string}} props
 */
export function SignedScale({ most, theme, words = "" }) {
  const cells = Array.from({ length: 33 }, (_, at) => css(signedColour(at / 16 - 1, theme)));
  return (
    <div class="legend">
      <span class="end">{short(-most, 3)}</span>
      <svg width="120" height="10" viewBox="0 0 33 1" preserveAspectRatio="none" aria-hidden="true">
        {cells.map((fill, at) => (
          <rect x={at} width="1.05" height="1" shape-rendering="crispEdges" fill={fill} />
        ))}
      </svg>
      <span class="end">{short(most, 3)}</span>
      {words && <span>{words}</span>}
    </div>
  );
}
