/** Two lines of words with ribbons between them; on a narrow page, two columns. */
import { useMemo } from "preact/hooks";
import { css, weightColour } from "../../parts/colour.js";
import { useWidth } from "../../parts/hooks.js";
import { clamp, sum } from "../../parts/numbers.js";
import { SpecialTitle, specialMeaning } from "../../parts/special.jsx";
import { clipped, visible } from "../../parts/text.js";

/** @typedef {import("./index.jsx").Word} Word */
/**
 * @typedef {{vertical: boolean, size: number, height: number, points: number[][][], widths:
 *   number[][], side: number, step: number}} Layout  font size, height of the drawing, the point of
 *   each word by side, and either the widths of words, or the width of a column and the distance of
 *   its lines
 * @typedef {import("./index.jsx").Aligned & import("./index.jsx").Pointing & {textWords:
 *   Set<number>[], theme: Theme}} RibbonProps
 */

export const THINNEST = 0.02; // the smallest share that is drawn
const LONGEST = 20; // characters of a word

/**
 * Words in two lines with ribbons between them; in two columns where the lines do not fit.
 * @param {RibbonProps} props
 */
export function Ribbons(props) {
  const { rows, columns, setHover } = props;
  const [element, width] = useWidth();
  const layout = useMemo(
    () => width && (layOutLines(columns, rows, width) ?? layOutColumns(columns, rows, width)),
    [columns, rows, width],
  );
  return (
    <div ref={element} onPointerLeave={() => setHover(null)}>
      {layout && <Drawing {...props} layout={layout} width={width} />}
    </div>
  );
}

/** @type {CanvasRenderingContext2D | null} */
let ruler = null;

/**
 * Return the width of a word in pixels.
 * @param {string} word
 * @param {number} size
 */
function wordWidth(word, size) {
  ruler ??= document.createElement("canvas").getContext("2d");
  if (!ruler) return 0;
  ruler.font = `${size}px Georgia, "DejaVu Serif", serif`;
  return ruler.measureText(clipped(word, LONGEST)).width;
}

/**
 * Place the words in two lines, in the largest font that fits; null if none does.
 * @param {string[]} columns
 * @param {string[]} rows
 * @param {number} width
 * @returns {Layout | null}
 */
function layOutLines(columns, rows, width) {
  for (const size of [21, 18, 15.5]) {
    const top = layOutLine(columns, size, width);
    const bottom = layOutLine(rows, size, width);
    if (Math.max(top.total, bottom.total) > width - 8) continue;
    const high = clamp(width * 0.3, 200, 300);
    const points = [
      top.middles.map((x) => [x, size + 12]),
      bottom.middles.map((x) => [x, high + size + 4]),
    ];
    const widths = [top.widths, bottom.widths];
    return { vertical: false, size, height: high + size + 16, points, widths, side: 0, step: 0 };
  }
  return null;
}

/**
 * Centre the words of one line.
 * @param {string[]} words
 * @param {number} size
 * @param {number} width
 */
function layOutLine(words, size, width) {
  const widths = words.map((word) => wordWidth(word, size) + 2);
  const gap = clamp(
    (width * 0.94 - sum(widths)) / Math.max(1, words.length - 1),
    size * 0.62,
    size * 2.6,
  );
  const total = sum(widths) + gap * (widths.length - 1);
  let left = (width - total) / 2;
  const middles = widths.map((wide) => {
    const middle = left + wide / 2;
    left += wide + gap;
    return middle;
  });
  return { total, middles, widths };
}

/**
 * Place the words in two columns.
 * @param {string[]} columns
 * @param {string[]} rows
 * @param {number} width
 * @returns {Layout}
 */
function layOutColumns(columns, rows, width) {
  const size = width < 420 ? 14 : 16;
  const step = Math.max(25, size * 1.55);
  const widest = Math.max(...[...columns, ...rows].map((word) => wordWidth(word, size)));
  const side = Math.min(width * 0.33, widest + 8);
  const lines = Math.max(columns.length, rows.length);
  /** @type {(words: string[], x: number) => number[][]} */
  const column = (words, x) =>
    words.map((_, at) => [x, step * (at + 0.5 + (lines - words.length) / 2) + 6]);
  const points = [column(columns, side), column(rows, width - side)];
  return { vertical: true, size, height: step * lines + 12, points, widths: [], side, step };
}

/**
 * The ribbons, lit and wide ones on top, and the words.
 * @param {RibbonProps & {layout: Layout, width: number}} props
 */
function Drawing({ rows, columns, weights, lit, textWords, setHover, pin, layout, width, theme }) {
  const { vertical, size, points } = layout;
  /** @type {(i: number, j: number) => boolean} */
  const isLit = (i, j) => (lit.side ? i : j) === lit.at;
  const crowded = rows.length * columns.length > 1600;
  const ribbons = weights
    .flatMap((row, i) => row.map((w, j) => ({ i, j, w, on: isLit(i, j) })))
    .filter(({ w, on }) => w >= (crowded && !on ? 0.3 : THINNEST))
    .sort((a, b) => Number(a.on) - Number(b.on) || a.w - b.w);
  const thickest = vertical ? Math.min(16, layout.step * 0.6) : 22;
  const hue = lit.side ? "var(--query)" : "var(--key)";
  const lift = size * 0.55;

  /** The path from a key to a query. @type {(i: number, j: number) => string} */
  const curve = (i, j) => {
    const [[fromX, fromY], [toX, toY]] = [points[0][j], points[1][i]];
    const [x0, y0] = vertical ? [fromX + 2, fromY] : [fromX, fromY + lift];
    const [x1, y1] = vertical ? [toX - 2, toY] : [toX, toY - size - lift * 0.4];
    const mx = (x0 + x1) / 2;
    const my = (y0 + y1) / 2;
    return vertical
      ? `M${x0} ${y0}C${mx} ${y0} ${mx} ${y1} ${x1} ${y1}`
      : `M${x0} ${y0}C${x0} ${my} ${x1} ${my} ${x1} ${y1}`;
  };
  /**
   * The share between a word and the highlighted one; 1 for the highlighted word itself.
   * @type {(word: Word) => number}
   */
  const strength = ({ side, at }) => {
    if (side === lit.side) return at === lit.at ? 1 : 0;
    return side ? weights[at][lit.at] : weights[lit.at][at];
  };
  /** Where a word can be pointed at: left, top, width, height. @type {(word: Word) => number[]} */
  const target = ({ side, at }) => {
    const [x, y] = points[side][at];
    if (vertical) return [side ? x : 0, y - layout.step / 2, layout.side, layout.step];
    const wide = layout.widths[side][at];
    return [
      x - Math.max(13, wide / 2 + 3),
      y - size - 2,
      Math.max(26, wide + 6),
      Math.max(26, size + 10),
    ];
  };
  /** @type {(word: Word, text: string) => any} */
  const drawWord = (word, text) => {
    const { side, at } = word;
    const [x, y] = points[side][at];
    const [left, top, wide, high] = target(word);
    const chosen = side === lit.side && at === lit.at;
    const strong = strength(word) > 0.25;
    const anchor = vertical ? (side ? "start" : "end") : "middle";
    const ink = (textWords[side].has(at) || strong) && !specialMeaning(text);
    const fill = chosen ? hue : ink ? "var(--ink)" : "var(--soft)";
    /** @param {KeyboardEvent} event */
    const pressKey = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      pin(word);
    };
    return (
      <g
        role="button"
        tabindex={0}
        aria-pressed={chosen}
        aria-label={`${visible(text)}, ${side ? "query" : "key"}`}
        class="dot"
        onPointerEnter={() => setHover(word)}
        onFocus={() => setHover(word)}
        onClick={() => pin(word)}
        onKeyDown={pressKey}
      >
        <rect
          x={left}
          y={top}
          width={wide}
          height={high}
          rx="4"
          fill={chosen ? "var(--wash)" : "transparent"}
        />
        <text
          x={x + (vertical ? (side ? 7 : -7) : 0)}
          y={vertical ? y + size * 0.34 : y}
          text-anchor={anchor}
          font-size={size}
          style={{ fontFamily: "var(--serif)", fontWeight: chosen || strong ? 600 : 400, fill }}
        >
          <SpecialTitle of={text} />
          {clipped(text, LONGEST)}
        </text>
      </g>
    );
  };
  return (
    <svg
      data-picture="alignment"
      viewBox={`0 0 ${width} ${layout.height}`}
      width={width}
      height={layout.height}
      role="group"
      aria-label="words and ribbons"
    >
      <g fill="none" stroke-linecap="round">
        {ribbons.map(({ i, j, w, on }) => (
          <path
            d={curve(i, j)}
            data-weight={w}
            stroke={css(weightColour(w, theme))}
            stroke-width={Math.max(0.8, w * thickest)}
            stroke-opacity={on ? 1 : 0.2}
          />
        ))}
      </g>
      {columns.map((text, at) => drawWord({ side: 0, at }, text))}
      {rows.map((text, at) => drawWord({ side: 1, at }, text))}
    </svg>
  );
}
