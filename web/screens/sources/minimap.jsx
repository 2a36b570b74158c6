/**
 * The minimap of a long text: the scores of all its tokens as bars, zoomed and moved as the map is.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import { themeColour } from "../../parts/answered.jsx";
import { count } from "../../parts/numbers.js";
import { useGestures } from "../map/gestures.js";
import { useCanvasSize } from "../map/hooks.js";
import { cellSize, clampView, toPixel, zoomAt } from "../map/viewport.js";

const AXIS = 18; // pixels below the bars
const SETTLES = 120; // milliseconds after which a view is requested and written into the address

/**
 * The scores of a whole long text on one strip, which zooms and moves like a map.
 * @param {{value: SourcesAnswer, chosen: State["sources"], go: Go, root: HTMLElement, theme: Theme,
 *   setCentre: (token: number | null) => void}} props
 */
export function Minimap({ value, chosen, go, root, theme, setCentre }) {
  const frame = useRef(/** @type {HTMLDivElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  // a view that is not in the address yet
  const [moved, setMoved] = useState(/** @type {View | null} */ (null));
  const timer = useRef(0);
  const size = useCanvasSize(frame, canvas, () => {});
  /** @type {MapInfo} */
  const info = { n_q: 1, n_k: value.n, tile: 256, max_zoom: 0, how: [] };
  const box = size && { left: 0, top: 0, width: size.width, height: size.height };
  const view = moved ?? (box && rangeView(chosen.low ?? 0, chosen.high ?? value.n, box));
  useEffect(() => setMoved(null), [chosen.low, chosen.high]);
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => {
    if (canvas.current && size && box && view)
      draw(canvas.current, { ...size, view, info, box, value }, root);
  }, [size, value, view?.x, view?.z, theme]);

  /** @type {(next: View) => void} */
  const move = (next) => {
    if (!box) return;
    const held = clampView(next, info, box);
    const [low, high] = viewRange(held, info, box);
    setMoved(rangeView(low, high, box));
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => {
      const whole = low <= 0 && high >= value.n;
      setCentre(null);
      go({ sources: whole ? { low: null, high: null } : { low, high } }, false);
    }, SETTLES);
  };
  const scene = view && box ? { view, info, box } : null;
  /**
   * A click shows the text there; a drag moves the view.
   * @type {(i: number, j: number, now?: boolean) => void}
   */
  const point = (_, j, now) => {
    if (now && j >= 0 && j < value.n) setCentre(j);
  };
  const pointers = useGestures({ frame, scene, move, point, overview: () => null });
  /** @param {KeyboardEvent} event */
  const pressKey = (event) => {
    if (!view || !box) return;
    const stride = 60 / cellSize(view, info);
    const middle = /** @type {const} */ ([box.width / 2, box.height / 2]);
    if (event.key === "ArrowLeft") move({ ...view, x: view.x - stride });
    else if (event.key === "ArrowRight") move({ ...view, x: view.x + stride });
    else if (event.key === "+" || event.key === "=") move(zoomAt(view, info, box, 1, ...middle));
    else if (event.key === "-") move(zoomAt(view, info, box, -1, ...middle));
    else if (event.key === "Home") move(rangeView(0, value.n, box));
    else if (event.key === "Enter") setCentre(Math.floor(view.x));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const [low, high] = view && box ? viewRange(view, info, box) : [0, value.n];
  return (
    <>
      <div
        class="minimap"
        ref={frame}
        role="application"
        tabindex={0}
        aria-roledescription="minimap"
        onKeyDown={pressKey}
        {...pointers}
        aria-label={
          `scores of ${count(value.n)} tokens; arrows move, plus and minus zoom, ` +
          "Home shows all, Enter shows the text in the middle"
        }
      >
        <canvas ref={canvas} data-picture="sources" />
      </div>
      <div class="row minimap-bar">
        <span class="soft figures">
          tokens {count(low)} to {count(high - 1)} of {count(value.n)}; the text below is{" "}
          {count(value.start)} to {count(value.stop - 1)}
        </span>
        <span class="row">
          <button
            type="button"
            class="button small"
            aria-label="zoom in"
            onClick={() => view && box && move(zoomAt(view, info, box, 1, box.width / 2, 0))}
          >
            +
          </button>
          <button
            type="button"
            class="button small"
            aria-label="zoom out"
            onClick={() => view && box && move(zoomAt(view, info, box, -1, box.width / 2, 0))}
          >
            −
          </button>
          <button
            type="button"
            class="button small"
            onClick={() => box && move(rangeView(0, value.n, box))}
          >
            all
          </button>
        </span>
      </div>
    </>
  );
}

/**
 * Return the view that shows tokens `low` to `high`.
 * @type {(low: number, high: number, box: Box) => View}
 */
const rangeView = (low, high, box) => ({
  x: (low + high) / 2,
  y: 0.5,
  z: Math.log2(box.width / Math.max(1, high - low)),
});

/**
 * Return the tokens of a view, low to high - 1, within the text.
 * @type {(view: View, info: MapInfo, box: Box) => [number, number]}
 */
function viewRange(view, info, box) {
  const half = box.width / cellSize(view, info) / 2;
  const wide = Math.min(info.n_k, Math.max(8, Math.round(2 * half)));
  const low = Math.max(0, Math.min(info.n_k - wide, Math.round(view.x - half)));
  return [low, low + wide];
}

/**
 * Draw the part that is shown as text, a bar for each bin of scores, and the axis.
 * @param {HTMLCanvasElement} canvas
 * @param {CanvasSize & {view: View, info: MapInfo, box: Box, value: SourcesAnswer}} scene
 * @param {HTMLElement} root
 */
function draw(canvas, { width, height, dense, view, info, box, value }, root) {
  const context = canvas.getContext("2d");
  if (!context) return;
  const colour = (/** @type {string} */ name) => themeColour(root, name);
  const x = (/** @type {number} */ token) => toPixel(view, info, box, token, 0)[0];
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.clearRect(0, 0, width, height);
  const floor = height - AXIS;
  context.fillStyle = colour("wash");
  context.fillRect(x(value.start), 0, Math.max(3, x(value.stop) - x(value.start)), floor);
  const bins = value.overview ?? [];
  const wide = (value.high - value.low) / (bins.length || 1);
  const seen = bins.filter(
    (_, at) => x(value.low + (at + 1) * wide) > 0 && x(value.low + at * wide) < width,
  );
  const most = Math.max(1e-30, ...seen);
  const least = Math.min(0, ...seen);
  const zero = floor - ((floor - 6) * -least) / (most - least);
  bins.forEach((score, at) => {
    const a = x(value.low + at * wide);
    const b = x(value.low + (at + 1) * wide);
    if (b < 0 || a > width) return;
    const tall = (Math.abs(score) / (most - least)) * (floor - 6);
    context.fillStyle = colour(score < 0 ? "query" : "bar");
    context.fillRect(
      a,
      score < 0 ? zero : zero - tall,
      Math.max(1, b - a - (b - a > 4 ? 1 : 0)),
      Math.max(score ? 1 : 0, tall),
    );
  });
  context.fillStyle = colour("line");
  context.fillRect(0, floor, width, 1);
  context.fillStyle = colour("soft");
  context.font = `11.5px ${colour("figures")}`;
  for (const [place, align] of /** @type {[number, CanvasTextAlign][]} */ ([
    [0, "left"],
    [0.5, "center"],
    [1, "right"],
  ])) {
    context.textAlign = align;
    const [low, high] = viewRange(view, info, box);
    context.fillText(count(Math.round(low + place * (high - low))), place * width, height - 4);
  }
}
