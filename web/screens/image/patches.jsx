/** Weights over the patches of one image, over the picture if there is one. */
import { useEffect, useRef } from "preact/hooks";
import { paletteColour, WEIGHTS } from "../../parts/colour.js";
import { clamp } from "../../parts/numbers.js";

/** @typedef {HTMLImageElement} PictureOf  a picture that a reader has chosen */

/** The most pixels along a side of a picture that is drawn: of the large one, and of each head. */
const LARGE = 1024;
const SMALL = 256;

/**
 * Return the colour of a patch: the share of the largest weight by the palette of weights, clear
 * over a picture where there is little weight.
 * @param {number} share
 * @param {Theme} theme
 * @param {boolean} over  whether there is a picture below
 * @returns {Colour}
 */
export function patchColour(share, theme, over) {
  // The root lets small weights be seen.
  const strength = Math.sqrt(clamp(share || 0, 0, 1));
  const colour = paletteColour(WEIGHTS[theme], over ? 0.35 + 0.65 * strength : strength);
  return over ? [...colour, Math.round(230 * strength)] : colour;
}

/**
 * Paint each weight as one pixel; the page enlarges the canvas without smoothing.
 * @param {HTMLCanvasElement | null} canvas
 * @param {ImageGrid} grid
 * @param {number[]} weights
 * @param {Theme} theme
 * @param {boolean} over
 */
function paintPatches(canvas, { rows, columns }, weights, theme, over) {
  if (!canvas) return;
  canvas.width = columns;
  canvas.height = rows;
  const most = Math.max(...weights) || 1;
  const picture = new ImageData(columns, rows);
  weights.forEach((weight, at) => {
    const [r, g, b, a = 255] = patchColour(weight / most, theme, over);
    picture.data.set([r, g, b, a], 4 * at);
  });
  canvas.getContext("2d")?.putImageData(picture, 0, 0);
}

/**
 * One head over one image. With `pick`, a patch is chosen by mouse, finger or arrow keys.
 * @param {{grid: ImageGrid, weights: number[], picture?: PictureOf, theme: Theme, name: string,
 *   own: number, point?: (at: number | null) => void, pick?: (at: number) => void, at?: number |
 *   null}} props  `own` is the query's patch, -1 if it is none; `at` the patch that is pointed at
 */
export function Patches({ grid, weights, picture, theme, name, own, point, pick, at }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const { rows, columns } = grid;
  useEffect(
    () => paintPatches(canvas.current, grid, weights, theme, Boolean(picture)),
    [grid, weights, theme, picture],
  );
  /** @param {PointerEvent} event */
  const patchAt = (event) => {
    const box = /** @type {DOMRect} */ (canvas.current?.getBoundingClientRect());
    const row = clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), 0, rows - 1);
    const wide = ((event.clientX - box.left) / box.width) * columns;
    return row * columns + clamp(Math.floor(wide), 0, columns - 1);
  };
  /** @param {KeyboardEvent} event */
  const pressKey = (event) => {
    const from = at ?? Math.max(own, 0);
    if (event.key === "Enter" || event.key === " ") pick?.(from);
    else {
      /** @type {Record<string, number[]>} */
      const steps = {
        ...{ ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] },
      };
      const step = steps[event.key];
      if (!step) return;
      const row = clamp(Math.floor(from / columns) + step[0], 0, rows - 1);
      point?.(row * columns + clamp((from % columns) + step[1], 0, columns - 1));
    }
    event.preventDefault();
    event.stopPropagation();
  };
  const chosen = pick && {
    role: /** @type {const} */ ("application"),
    tabindex: 0,
    "aria-roledescription": "image",
    "aria-label":
      `${name}: ${rows} rows of ${columns} patches; arrow keys go from patch to patch, ` +
      "Enter looks from there",
    onPointerMove: (/** @type {PointerEvent} */ event) => point?.(patchAt(event)),
    onPointerLeave: () => point?.(null),
    onPointerDown: (/** @type {PointerEvent} */ event) => pick(patchAt(event)),
    onKeyDown: pressKey,
    onBlur: () => point?.(null),
  };
  return (
    <div
      class={`patches${pick ? " large" : ""}`}
      style={{ aspectRatio: columns / rows }}
      {...chosen}
    >
      {picture && <Photo picture={picture} theme={theme} side={pick ? LARGE : SMALL} />}
      <canvas
        ref={canvas}
        data-picture={pick ? "image" : undefined}
        {...(pick ? { "aria-hidden": true } : { role: "img", "aria-label": name })}
      />
      <svg aria-hidden="true" viewBox={`0 0 ${columns} ${rows}`} preserveAspectRatio="none">
        {own >= 0 && <Frame at={own} columns={columns} kind="own" />}
        {at !== undefined && at !== null && at !== own && (
          <Frame at={at} columns={columns} kind="pointed" />
        )}
      </svg>
    </div>
  );
}

/**
 * The picture in pale grey: colours are those of weights alone. A canvas, so that it is saved.
 * @param {{picture: PictureOf, theme: Theme, side: number}} props
 */
function Photo({ picture, theme, side }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!canvas.current || !context) return;
    const { naturalWidth, naturalHeight } = picture;
    const scale = Math.min(1, side / Math.max(naturalWidth, naturalHeight));
    const width = Math.max(1, Math.round(naturalWidth * scale));
    const height = Math.max(1, Math.round(naturalHeight * scale));
    Object.assign(canvas.current, { width, height });
    context.drawImage(picture, 0, 0, width, height);
    const pixels = context.getImageData(0, 0, width, height);
    const { data } = pixels;
    const [ground, range] = theme === "light" ? [96, 159] : [20, 140];
    for (let at = 0; at < data.length; at += 4) {
      const grey = 0.2126 * data[at] + 0.7152 * data[at + 1] + 0.0722 * data[at + 2];
      data.fill(Math.round(ground + (grey / 255) * range), at, at + 3);
    }
    context.putImageData(pixels, 0, 0);
  }, [picture, theme, side]);
  return <canvas ref={canvas} class="photo" aria-hidden="true" />;
}

/**
 * A frame around a patch.
 * @param {{at: number, columns: number, kind: string}} props
 */
const Frame = ({ at, columns, kind }) => (
  <rect
    class={kind}
    x={at % columns}
    y={Math.floor(at / columns)}
    width="1"
    height="1"
    fill="none"
    vector-effect="non-scaling-stroke"
  />
);
