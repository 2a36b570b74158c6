/** A small matrix on a canvas. A cell is chosen by mouse, finger or arrow keys. */
import { useEffect, useRef } from "preact/hooks";
import { readableInk } from "./colour.js";
import { useWidth } from "./hooks.js";
import { clamp, short } from "./numbers.js";
import { clipped, visible } from "./text.js";

export const FEW = 8; // columns; up to here every cell shows its number, where it fits
const [TWO_DIGITS, FOUR_DIGITS] = [48, 64]; // pixels of 0.00018 and of 0.0001842
const SLANTED = 13; // pixels between two slanted labels

/**
 * Paint each number as one pixel; the page enlarges the canvas without smoothing.
 * @template {JsonNumber} N
 * @param {HTMLCanvasElement | null} canvas
 * @param {N[][]} rows
 * @param {(x: N) => Colour} colour
 */
export function paint(canvas, rows, colour) {
  const height = rows.length;
  const width = rows[0]?.length ?? 0;
  if (!canvas || !height || !width) return;
  canvas.width = width;
  canvas.height = height;
  const picture = new ImageData(width, height);
  rows.flat().forEach((x, at) => {
    const [r, g, b, a = 255] = colour(x);
    picture.data.set([r, g, b, a], 4 * at);
  });
  canvas.getContext("2d")?.putImageData(picture, 0, 0);
}

/**
 * A matrix of numbers as colours on a canvas, with words beside it where they fit.
 * @param {{rows: number[][], colour: (x: number) => Colour, labels: string[], columns?: string[],
 *   name: string, cell: number, at: number[] | null, chosen?: number, point: (i: number, m: number)
 *   => void, pick?: (i: number, m: number) => void}} props  `cell` is the height of a row in
 *   pixels, `columns` are labels
 */
export function Matrix({ rows, colour, labels, columns, name, cell, at, chosen, point, pick }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => paint(canvas.current, rows, colour), [rows, colour]);
  const height = rows.length;
  const width = rows[0].length;
  const [frame, frameWidth] = useWidth();
  const room = frameWidth / width;
  const digits = width > FEW || cell < 16 || room < TWO_DIGITS ? 0 : room < FOUR_DIGITS ? 2 : 4;
  /**
   * Where there is not enough room for all labels, only the column pointed at has one.
   * @type {(j: number) => boolean}
   */
  const labelled = (j) => frameWidth / width >= SLANTED || j === at?.[1];
  /** @type {(event: PointerEvent, use: (i: number, m: number) => void) => void} */
  const withCell = (event, use) => {
    const box = canvas.current?.getBoundingClientRect();
    if (!box) return;
    /** @type {(position: number, size: number, n: number) => number} */
    const index = (position, size, n) => clamp(Math.floor((position / size) * n), 0, n - 1);
    use(
      index(event.clientY - box.top, box.height, height),
      index(event.clientX - box.left, box.width, width),
    );
  };
  /** @param {KeyboardEvent} event */
  const pressKey = (event) => {
    const [i, m] = at ?? [0, 0];
    if (event.key === "Enter" && pick) return pick(i, m);
    /** @type {Record<string, number[]>} */
    const steps = {
      ...{ ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] },
      ...{ Home: [0, -width], End: [0, width] },
    };
    const step = steps[event.key];
    if (!step) return undefined;
    event.preventDefault();
    event.stopPropagation();
    return point(clamp(i + step[0], 0, height - 1), clamp(m + step[1], 0, width - 1));
  };
  return (
    <div class="matrix">
      {columns && (
        <div
          class="columns"
          aria-hidden="true"
          style={{ gridTemplateColumns: `repeat(${columns.length}, 1fr)` }}
        >
          {columns.map((label, j) => (
            <span class={j === at?.[1] ? "chosen" : ""}>
              {labelled(j) ? clipped(label, 12) : ""}
            </span>
          ))}
        </div>
      )}
      <div
        class="rows"
        aria-hidden="true"
        style={{ gridTemplateRows: `repeat(${height}, ${cell}px)` }}
      >
        {cell >= 12 &&
          labels.map((label, i) => (
            <span class={i === chosen || i === at?.[0] ? "chosen" : ""}>{visible(label)}</span>
          ))}
      </div>
      <div
        ref={frame}
        style={{ position: "relative", height: `${cell * height}px` }}
        role="application"
        tabindex={0}
        aria-roledescription="matrix"
        aria-label={`${name}: ${height} rows of ${width}; arrow keys go from cell to cell`}
        onPointerMove={(event) => withCell(event, point)}
        onPointerDown={(event) => withCell(event, pick ?? point)}
        onKeyDown={pressKey}
        onFocus={() => !at && point(0, 0)}
      >
        <canvas ref={canvas} style={{ height: `${cell * height}px` }} />
        {digits > 0 && (
          <div
            class="numbers"
            aria-hidden="true"
            style={{
              gridTemplateColumns: `repeat(${width}, 1fr)`,
              fontSize: `${Math.min(12.5, room / (digits + 5) / 0.61)}px`,
            }}
          >
            {rows.flat().map((x) => (
              <span
                style={{
                  color: x === 0 && colour(x)[3] === 0 ? "inherit" : readableInk(colour(x)),
                }}
              >
                {short(x, digits)}
              </span>
            ))}
          </div>
        )}
        {at && (
          <svg
            aria-hidden="true"
            style={{
              position: "absolute",
              inset: 0,
              width: "100%",
              height: "100%",
              pointerEvents: "none",
            }}
            viewBox={`0 0 ${width} ${height}`}
            preserveAspectRatio="none"
          >
            <rect
              x={at[1]}
              y={at[0]}
              width="1"
              height="1"
              fill="none"
              stroke="currentColor"
              stroke-width="2"
              vector-effect="non-scaling-stroke"
            />
          </svg>
        )}
      </div>
    </div>
  );
}
