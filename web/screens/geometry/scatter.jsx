/** Every token as a point, before and after attention, with labels that do not overlap. */
import { useMemo, useRef, useState } from "preact/hooks";
import { useWidth } from "../../parts/hooks.js";
import { clamp, percent } from "../../parts/numbers.js";
import { clipped, visible } from "../../parts/text.js";

const MARGIN = 46; // pixels

/**
 * @typedef {{tokens: string[], before: number[][], after: number[][], alpha: number, i: number, j:
 *   number | null, trails: boolean, explained: number[], moving: import("./moving.js").Moving |
 *   null, choose: (at: number) => void}} ScatterProps  `moving` is null where nothing can be moved
 */

/**
 * The points, drawn at the size that they have on the page, so that words can be read on a phone
 * too.
 * @param {ScatterProps} props
 */
export function Scatter(props) {
  const [element, width] = useWidth();
  return (
    <div ref={element}>
      {width > 0 && (
        <Points {...props} wide={width} high={Math.round(clamp(width * 0.65, 320, 580))} />
      )}
    </div>
  );
}

/**
 * The points, their trails, and the labels that find a place.
 * @param {ScatterProps & {wide: number, high: number}} props
 */
function Points(props) {
  const { tokens, before, after, alpha, i, j, trails, explained, moving, choose } = props;
  const { wide, high } = props;
  const [hover, setHover] = useState(/** @type {number | null} */ (null));
  const fitted = useMemo(() => {
    const points = [...before, ...after];
    const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
    const x0 = Math.min(...xs);
    const x1 = Math.max(...xs);
    const y0 = Math.min(...ys);
    const y1 = Math.max(...ys);
    // one scale for both directions, so that distances can be compared
    const scale = Math.min(
      (wide - 2 * MARGIN - 40) / (x1 - x0 || 1),
      (high - 2 * MARGIN) / (y1 - y0 || 1),
    );
    const centre = [(x0 + x1) / 2, (y0 + y1) / 2];
    return { wide, high, centre, scale };
  }, [before, after, wide, high]);
  // While a point is moved, everything else keeps its place.
  const kept = useRef(fitted);
  if (!moving?.isHeld) kept.current = fitted;
  const { centre, scale } = kept.current;
  const toPage = (/** @type {number[]} */ [x, y]) => [
    wide / 2 + (x - centre[0]) * scale,
    high / 2 - (y - centre[1]) * scale,
  ];
  const toPlane = (/** @type {number[]} */ [x, y]) => [
    centre[0] + (x - wide / 2) / scale,
    centre[1] - (y - high / 2) / scale,
  ];
  const [starts, ends] = [before.map(toPage), after.map(toPage)];

  // Where the points are now, between before and after.
  const now = starts.map((from, at) => from.map((x, axis) => x + (ends[at][axis] - x) * alpha));
  const labels = placeLabels(now, tokens, wide, [i, j]);
  /** @param {KeyboardEvent} event */
  const pressKey = (event) => {
    const step = /^Arrow(Right|Down)$/.test(event.key)
      ? 1
      : /^Arrow(Left|Up)$/.test(event.key)
        ? -1
        : 0;
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    choose(clamp(i + step, 0, tokens.length - 1));
  };
  /** @type {(at: number, other: string) => string} */
  const colourOf = (at, other) => (at === i ? "var(--query)" : at === j ? "var(--key)" : other);
  /** @type {(at: number) => boolean} */
  const strong = (at) => at === i || at === j || at === hover;
  return (
    <svg
      class="scatter"
      data-picture="geometry"
      viewBox={`0 0 ${wide} ${high}`}
      width={wide}
      height={high}
      role="application"
      tabindex={0}
      onKeyDown={pressKey}
      aria-label={
        `${tokens.length} tokens in a plane; arrow keys go from token to token. ` +
        `Chosen: ${visible(tokens[i])}`
      }
      onPointerLeave={() => setHover(null)}
    >
      <line x1="16" x2={wide - 16} y1={high - 20} y2={high - 20} stroke="var(--line)" />
      <text x={wide - 16} y={high - 6} text-anchor="end" font-size="11.5" fill-opacity=".75">
        first direction, {percent(explained[0])} of the variance
      </text>
      <line x1="16" x2="16" y1="16" y2={high - 20} stroke="var(--line)" />
      <text
        transform="rotate(-90)"
        x="-16"
        y="11"
        text-anchor="end"
        font-size="11.5"
        fill-opacity=".75"
      >
        second, {percent(explained[1])}
      </text>
      {trails &&
        starts.map((from, at) => (
          <line
            x1={from[0]}
            y1={from[1]}
            x2={now[at][0]}
            y2={now[at][1]}
            stroke={colourOf(at, "currentColor")}
            stroke-opacity={strong(at) ? 0.95 : 0.28}
            stroke-width={strong(at) ? 2 : 1}
          />
        ))}
      {trails &&
        starts.map((from, at) => (
          <circle
            cx={from[0]}
            cy={from[1]}
            r="3.6"
            fill="var(--raised)"
            stroke={colourOf(at, "currentColor")}
            stroke-opacity={strong(at) ? 1 : 0.5}
          />
        ))}
      {now.map((at, place) => (
        <circle
          class={place === i ? "dot own" : "dot"}
          cx={at[0]}
          cy={at[1]}
          r={place === i ? 7 : 5}
          fill={colourOf(place, "var(--bar)")}
          stroke="var(--raised)"
          onPointerEnter={() => setHover(place)}
          onClick={() => choose(place)}
        />
      ))}
      {now.map(
        (at, place) =>
          (labels[place] || strong(place)) && (
            <text
              class="dot"
              x={at[0] + (labels[place]?.dx ?? 9)}
              y={at[1] + (labels[place]?.dy ?? 4)}
              text-anchor={labels[place]?.anchor ?? "start"}
              font-size={place === i ? 17 : 15}
              style={{
                fontFamily: "var(--serif)",
                fontWeight: strong(place) ? 600 : 400,
                fill: colourOf(place, "var(--ink)"),
                paintOrder: "stroke",
                stroke: "var(--raised)",
                strokeWidth: "4px",
              }}
              onPointerEnter={() => setHover(place)}
              onClick={() => choose(place)}
            >
              {clipped(tokens[place], 18)}
            </text>
          ),
      )}
      {moving &&
        moving.handles.map((place) => (
          <Movable
            key={place}
            at={starts[place]}
            token={tokens[place]}
            isChosen={place === i}
            moving={moving}
            choose={() => choose(place)}
            move={([x, y]) =>
              moving.move(place, toPlane([clamp(x, 4, wide - 4), clamp(y, 4, high - 4)]))
            }
          />
        ))}
    </svg>
  );
}

const KEY_PIXELS = 4; // by which an arrow key moves a point
const CLICK = 3; // pixels within which a press is a click

/**
 * The hollow point of a word, which can be moved by mouse, pen, finger and arrow keys.
 * @param {{at: number[], token: string, isChosen: boolean, moving: import("./moving.js").Moving,
 *   choose: () => void, move: (to: number[]) => void}} props  `at` and `to` are pixels
 */
function Movable({ at, token, isChosen, moving, choose, move }) {
  /** @type {{current: {from: number[], at: number[], moves: boolean} | null}} */
  const drag = useRef(null);
  /** @param {KeyboardEvent} event */
  const pressKey = (event) => {
    /** @type {Record<string, number[]>} */
    const sides = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const side = sides[event.key];
    if (event.key === "Enter" || event.key === "Escape") moving.release();
    if (!side) return;
    event.preventDefault();
    event.stopPropagation();
    const far = KEY_PIXELS * (event.shiftKey ? 10 : 1);
    move([at[0] + far * side[0], at[1] + far * side[1]]);
  };
  /** @param {PointerEvent & {currentTarget: SVGCircleElement}} event */
  const press = (event) => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    drag.current = { from: [event.clientX, event.clientY], at, moves: false };
  };
  /** @param {PointerEvent} event */
  const drawOn = (event) => {
    const begun = drag.current;
    if (!begun) return;
    const [x, y] = [event.clientX - begun.from[0], event.clientY - begun.from[1]];
    begun.moves ||= Math.hypot(x, y) > CLICK;
    if (begun.moves) move([begun.at[0] + x, begun.at[1] + y]);
  };
  const release = () => {
    if (drag.current && !drag.current.moves) choose();
    drag.current = null;
    moving.release();
  };
  return (
    <circle
      class={`movable ${isChosen ? "chosen" : ""}`}
      cx={at[0]}
      cy={at[1]}
      r="12"
      role="button"
      tabindex={0}
      aria-label={`${visible(token)} before attention; arrow keys move it`}
      onKeyDown={pressKey}
      onBlur={() => !drag.current && moving.release()}
      onPointerDown={press}
      onPointerMove={drawOn}
      onPointerUp={release}
      onPointerCancel={release}
    />
  );
}

/**
 * Where a label may be, relative to its point.
 * @type {[number, number, "start" | "middle" | "end"][]}
 */
const LABEL_PLACES = [
  [9, 5, "start"],
  [-9, 5, "end"],
  [0, -10, "middle"],
  [0, 21, "middle"],
  [8, -8, "start"],
  [-8, -8, "end"],
  [8, 17, "start"],
  [-8, 17, "end"],
];

/**
 * Return a place for each label where no other label or point is; a label without a place is shown
 * on hover.
 * @param {number[][]} points
 * @param {string[]} tokens
 * @param {number} right  the right edge in pixels
 * @param {(number | null)[]} first  indices of the tokens that choose first
 */
function placeLabels(points, tokens, right, first) {
  const taken = points.map(([x, y]) => ({ left: x - 5, right: x + 5, top: y - 5, bottom: y + 5 }));
  /** @type {{dx: number, dy: number, anchor: string}[]} */
  const labels = [];
  const order = [...points.keys()].sort(
    (a, b) => Number(first.includes(b)) - Number(first.includes(a)),
  );
  for (const at of order) {
    const [x, y] = points[at];
    const wide = Math.min([...visible(tokens[at])].length, 18) * 8.4 + 4;
    for (const [dx, dy, anchor] of LABEL_PLACES) {
      const left = x + dx - { start: 0, middle: wide / 2, end: wide }[anchor];
      const spot = { left, right: left + wide, top: y + dy - 13, bottom: y + dy + 4 };
      const free = taken.every(
        (other, owner) =>
          owner === at ||
          other.right < spot.left ||
          other.left > spot.right ||
          other.bottom < spot.top ||
          other.top > spot.bottom,
      );
      if (!free || spot.left < 22 || spot.right > right - 4) continue;
      taken.push(spot);
      labels[at] = { dx, dy, anchor };
      break;
    }
  }
  return labels;
}
