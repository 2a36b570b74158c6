/** All heads of an atlas on one canvas: a scatter of two columns, or a grid of layers and heads. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { themeColour } from "../../parts/answered.jsx";
import { clamp, count, counted, percent, short } from "../../parts/numbers.js";
import { clipped, visible } from "../../parts/text.js";
import { useCanvasSize } from "../map/hooks.js";

/**
 * The mark of each kind of head: a shape and a colour, so that neither alone has to tell kinds
 * apart.
 * Colours are those of Okabe and Ito (2008), which people with any colour vision tell apart; shapes
 * are paths between -1 and 1.
 * @type {Record<string, {path: string, light: string, dark: string}>}
 */
export const KIND_MARKS = {
  itself: { path: "M-.85-.85H.85V.85H-.85Z", light: "#0072b2", dark: "#4aa3df" },
  previous: { path: "M-1 0 .7-.95V.95Z", light: "#d55e00", dark: "#f0803c" },
  first: { path: "M0-1 .95.75H-.95Z", light: "#009e73", dark: "#2fc49a" },
  sink: { path: "M0 1 .95-.75H-.95Z", light: "#b8860b", dark: "#e6b93c" },
  same: { path: "M0-1.1 1.1 0 0 1.1-1.1 0Z", light: "#cc79a7", dark: "#e39cc3" },
  induction: {
    path: "M0-1.1.3-.35 1.1-.3.5.2.7 1 0 .55-.7 1-.5.2-1.1-.3-.3-.35Z",
    light: "#7a2a8c",
    dark: "#c78be0",
  },
  punctuation: {
    path: "M-.32-1H.32V-.32H1V.32H.32V1H-.32V.32H-1V-.32H-.32Z",
    light: "#2a8fc4",
    dark: "#7fccf5",
  },
  far: {
    path: "M-1-.6-.6-1 0-.4.6-1 1-.6.4 0 1 .6.6 1 0 .4-.6 1-1 .6-.4 0Z",
    light: "#3d3a34",
    dark: "#e8e4da",
  },
  mixed: { path: "M-.7 0A.7.7 0 1 1 .7 0 .7.7 0 1 1-.7 0Z", light: "#8a857a", dark: "#8f8b82" },
};

/** The mark of a kind, for legends and tables. @param {{kind: string}} props */
export function Mark({ kind }) {
  const { path, light, dark } = KIND_MARKS[kind] ?? KIND_MARKS.mixed;
  return (
    <svg class="kind-mark" viewBox="-1.2 -1.2 2.4 2.4" width="14" height="14" aria-hidden="true">
      <path d={path} style={{ fill: `light-dark(${light}, ${dark})` }} />
    </svg>
  );
}

const EDGE = { left: 62, right: 16, top: 16, bottom: 44 }; // pixels around the scatter
const REACH = 18; // pixels within which a mark is pointed at

/** @typedef {{head: HeadOfAtlas, x: number, y: number, size: number}} Placed */

/**
 * The heads on a canvas: the nearest one is pointed at, arrow keys go from head to head.
 * @param {{atlas: AtlasAnswer, chosen: HeadOfAtlas, choose: (head: HeadOfAtlas) => void, ticks:
 *   number[][], settings: State["atlas"], root: HTMLElement, theme: Theme}} props
 */
export function AtlasPicture({ atlas, chosen, choose, ticks, settings, root, theme }) {
  const frame = useRef(/** @type {HTMLDivElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const size = useCanvasSize(frame, canvas, () => {});
  const [hover, setHover] = useState(/** @type {HeadOfAtlas | null} */ (null));
  const grid = settings.look === "grid";
  const placed = useMemo(
    () =>
      size ? (grid ? gridPlaces(atlas, size) : scatterPlaces(atlas, size, ticks, settings)) : [],
    [atlas, size, ticks, grid, settings.across, settings.up],
  );
  const own = placed.find(({ head }) => head.layer === chosen.layer && head.head === chosen.head);
  // Draw again whenever something that is seen has changed.
  useEffect(() => {
    if (!canvas.current || !size) return;
    const scene = {
      ...size,
      placed,
      atlas,
      ticks,
      settings,
      theme,
      grid,
      hover,
      chosen: own?.head ?? null,
    };
    draw(canvas.current, scene, (name) => themeColour(root, name));
  }, [size, placed, hover, own, theme, settings.only]);

  /** Return the head that is pointed at; faded ones cannot be. @param {MouseEvent} event */
  const nearest = (event) => {
    const box = /** @type {HTMLElement} */ (frame.current).getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    let best = null;
    let least = REACH;
    for (const one of placed) {
      if (settings.only && one.head.kind !== settings.only) continue;
      const away = Math.hypot(one.x - x, one.y - y);
      if (away >= least) continue;
      best = one;
      least = away;
    }
    return best?.head ?? null;
  };
  /** @param {KeyboardEvent} event */
  const pressKey = (event) => {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const arrow = arrows[/** @type {"ArrowLeft"} */ (event.key)];
    if (!arrow || !placed.length) return;
    event.preventDefault();
    event.stopPropagation();
    const shown = placed.filter(({ head }) => !settings.only || head.kind === settings.only);
    const next = neighbour(shown, own, arrow, grid);
    if (next) choose(next.head);
  };
  const said = hover ?? own?.head ?? null;
  const missing = atlas.heads.length - placed.length;
  return (
    <>
      <figcaption>
        <b>{visible(atlas.atlas)}</b>{" "}
        <span class="soft">
          {atlas.model ?? "a model"}: {counted(atlas.heads.length, "head")},{" "}
          {counted(atlas.texts, "text")}, {counted(atlas.tokens, "token")}
          {atlas.skipped ? `, ${counted(atlas.skipped, "text")} skipped` : ""}
        </span>
      </figcaption>
      <div
        class="atlas-canvas"
        ref={frame}
        role="application"
        tabindex={0}
        aria-roledescription="chart of heads"
        onKeyDown={pressKey}
        style={grid ? { height: `${gridHeight(atlas, size?.width ?? 600)}px` } : {}}
        aria-label={`${count(atlas.heads.length)} heads; arrow keys go from head to head`}
        onPointerMove={(/** @type {PointerEvent} */ event) => setHover(nearest(event))}
        onPointerLeave={() => setHover(null)}
        onClick={(/** @type {MouseEvent} */ event) => {
          const head = nearest(event);
          if (head) choose(head);
        }}
      >
        <canvas ref={canvas} data-picture="atlas" />
      </div>
      <p class="atlas-said" aria-live="polite">
        {said ? describe(said, settings, atlas) : ""}
        {missing > 0 && !grid ? (
          <>
            {" "}
            <span class="soft">{count(missing)} heads have no such number.</span>
          </>
        ) : (
          ""
        )}
      </p>
    </>
  );
}

/**
 * Return what a screen reader says of a head.
 * @type {(head: HeadOfAtlas, settings: State["atlas"], atlas: AtlasAnswer) => string}
 */
const describe = (head, settings, atlas) => {
  const columns = new Set([settings.across, settings.up]);
  const said = [...columns].map((name) => `${label(name)} ${numberText(head[name], name, atlas)}`);
  return `${head.layer}, head ${head.head}: ${head.kind}; ${said.join(", ")}`;
};

/**
 * Return a number as its column shows it: a share as a percentage.
 * @type {(x: string | number | null, name: string, atlas: AtlasAnswer) => string}
 */
const numberText = (x, name, atlas) =>
  typeof x !== "number" ? "unknown" : atlas.shares.includes(name) ? percent(x) : short(x, 3);

/** Return the name of a column, with its unit. @param {string} name */
const label = (name) => `${name.replace(/_/g, " ")}${name === "entropy" ? " (nats)" : ""}`;

/**
 * Return where each head lies in the scatter; a head without both numbers is left out.
 * @type {(atlas: AtlasAnswer, size: CanvasSize, ticks: number[][], settings: State["atlas"]) =>
 *   Placed[]}
 */
function scatterPlaces(atlas, { width, height }, ticks, settings) {
  const size = clamp(90 / Math.sqrt(atlas.heads.length), 4.5, 8);
  return atlas.heads.flatMap((head) => {
    const x = head[settings.across];
    const y = head[settings.up];
    if (typeof x !== "number" || typeof y !== "number") return [];
    return [{ head, x: across(x, ticks[0], width), y: up(y, ticks[1], height), size }];
  });
}

/**
 * Return the pixel of a number across.
 * @type {(x: number, ticks: number[], width: number) => number}
 */
const across = (x, ticks, width) => EDGE.left + within(x, ticks) * (width - EDGE.left - EDGE.right);
/**
 * Return the pixel of a number upwards.
 * @type {(y: number, ticks: number[], height: number) => number}
 */
const up = (y, ticks, height) =>
  height - EDGE.bottom - within(y, ticks) * (height - EDGE.top - EDGE.bottom);
/**
 * Where a number lies between the first and the last tick, from 0 to 1.
 * @type {(x: number, ticks: number[]) => number}
 */
const within = (x, ticks) => (x - ticks[0]) / (ticks[ticks.length - 1] - ticks[0]);

/**
 * Return the number of columns and the size of a cell of the grid.
 * @type {(atlas: AtlasAnswer, width: number) => {columns: number, cell: number, left: number}}
 */
function gridShape(atlas, width) {
  const columns = Math.max(...atlas.heads.map((head) => head.head)) + 1;
  const left = width < 480 ? 74 : 124;
  return { columns, left, cell: clamp((width - left - 8) / columns, 7, 34) };
}

/** Return how high the grid is. @type {(atlas: AtlasAnswer, width: number) => number} */
const gridHeight = (atlas, width) => 26 + gridShape(atlas, width).cell * atlas.layers.length + 8;

/**
 * Return where each head lies in the grid: a row for each layer.
 * @type {(atlas: AtlasAnswer, size: CanvasSize) => Placed[]}
 */
function gridPlaces(atlas, { width }) {
  const { cell, left } = gridShape(atlas, width);
  const rows = new Map(atlas.layers.map((layer, at) => [layer, at]));
  return atlas.heads.map((head) => ({
    head,
    x: left + (head.head + 0.5) * cell,
    y: 26 + ((rows.get(head.layer) ?? 0) + 0.5) * cell,
    size: cell * 0.3,
  }));
}

/**
 * The next head in a direction: of a grid the one beside it, of a scatter the next in the order of
 * that axis.
 * @type {(shown: Placed[], own: Placed | undefined, arrow: number[], grid: boolean) => Placed |
 *   undefined}
 */
function neighbour(shown, own, [dx, dy], grid) {
  if (!own) return shown[0];
  /** @type {(one: Placed) => number} */
  const ahead = (one) => dx * (one.x - own.x) + dy * (one.y - own.y);
  /** @type {(one: Placed) => number} */
  const aside = (one) =>
    grid ? Math.abs(dx * (one.y - own.y)) + Math.abs(dy * (one.x - own.x)) : 0;
  const found = shown.filter((one) => ahead(one) > 0);
  return found.sort((a, b) => aside(a) - aside(b) || ahead(a) - ahead(b))[0];
}

/**
 * @typedef {CanvasSize & {placed: Placed[], atlas: AtlasAnswer, ticks: number[][], settings:
 *   State["atlas"], theme: Theme, grid: boolean, hover: HeadOfAtlas | null, chosen: HeadOfAtlas |
 *   null}} Scene
 */

/**
 * Draw the axes or the layers, then the marks.
 * @type {(canvas: HTMLCanvasElement, scene: Scene, colour: (name: string) => string) => void}
 */
function draw(canvas, scene, colour) {
  const context = canvas.getContext("2d");
  if (!context) return;
  const { width, height, dense, placed, settings, theme, hover, chosen } = scene;
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `11.5px ${colour("figures")}`;
  if (scene.grid) drawLayers(context, scene, colour);
  else drawAxes(context, scene, colour);
  const paths = Object.fromEntries(
    Object.entries(KIND_MARKS).map(([kind, mark]) => [kind, new Path2D(mark.path)]),
  );
  const ordered = [...placed].sort(
    (a, b) =>
      Number(a.head === chosen) - Number(b.head === chosen) ||
      Number(a.head.kind !== "mixed") - Number(b.head.kind !== "mixed"),
  );
  for (const { head, x, y, size } of ordered) {
    const faded = settings.only && head.kind !== settings.only;
    const strong = head === hover || head === chosen;
    context.save();
    context.globalAlpha = faded ? 0.12 : strong || scene.grid ? 1 : 0.86;
    context.translate(x, y);
    const scale = size * (strong && !scene.grid ? 1.35 : 1);
    context.scale(scale, scale);
    context.fillStyle = (KIND_MARKS[head.kind] ?? KIND_MARKS.mixed)[theme];
    context.fill(paths[head.kind] ?? paths.mixed);
    context.lineWidth = 1 / scale;
    context.strokeStyle = colour("raised");
    if (!scene.grid) context.stroke(paths[head.kind] ?? paths.mixed);
    context.restore();
    if (!strong) continue;
    context.lineWidth = head === chosen ? 2.5 : 1.5;
    context.strokeStyle = colour(head === chosen ? "ink" : "soft");
    context.beginPath();
    context.arc(x, y, Math.max(9, size * 1.9), 0, 7);
    context.stroke();
  }
}

/**
 * Draw the ticks and names of both axes.
 * @type {(context: CanvasRenderingContext2D, scene: Scene, colour: (name: string) => string) =>
 *   void}
 */
function drawAxes(context, { width, height, ticks, settings, atlas }, colour) {
  context.strokeStyle = colour("faint");
  context.lineWidth = 1;
  context.fillStyle = colour("soft");
  /** @type {(x0: number, y0: number, x1: number, y1: number) => void} */
  const line = (x0, y0, x1, y1) => {
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  };
  ticks[0].forEach((tick, at) => {
    const x = across(tick, ticks[0], width);
    line(x, EDGE.top, x, height - EDGE.bottom);
    context.textAlign = at === ticks[0].length - 1 ? "right" : "center";
    context.fillText(
      numberText(tick, settings.across, atlas),
      at === ticks[0].length - 1 ? width - 4 : x,
      height - EDGE.bottom + 16,
    );
  });
  context.textAlign = "right";
  for (const tick of ticks[1]) {
    const y = up(tick, ticks[1], height);
    line(EDGE.left, y, width - EDGE.right, y);
    context.fillText(numberText(tick, settings.up, atlas), EDGE.left - 7, y + 4);
  }
  context.fillStyle = colour("ink");
  context.font = `600 12.5px ${colour("sans")}`;
  context.textAlign = "right";
  context.fillText(`${label(settings.across)} →`, width - EDGE.right, height - 8);
  context.save();
  context.translate(13, EDGE.top);
  context.rotate(-Math.PI / 2);
  context.fillText(`${label(settings.up)} →`, 0, 0);
  context.restore();
}

/**
 * Draw the cells of the grid: their shade is the chosen column.
 * @type {(context: CanvasRenderingContext2D, scene: Scene, colour: (name: string) => string) =>
 *   void}
 */
function drawLayers(context, { width, placed, atlas, ticks, settings }, colour) {
  const { cell, left, columns } = gridShape(atlas, width);
  for (const { head, x, y } of placed) {
    const share =
      typeof head[settings.across] === "number"
        ? within(Number(head[settings.across]), ticks[0])
        : 0;
    context.fillStyle = colour("sunk");
    context.fillRect(x - cell / 2 + 0.5, y - cell / 2 + 0.5, cell - 1, cell - 1);
    context.globalAlpha = 0.42 * clamp(share, 0, 1);
    context.fillStyle = colour("bar");
    context.fillRect(x - cell / 2 + 0.5, y - cell / 2 + 0.5, cell - 1, cell - 1);
    context.globalAlpha = 1;
  }
  context.fillStyle = colour("soft");
  context.textAlign = "right";
  const every = Math.ceil(13 / cell);
  atlas.layers.forEach((layer, at) => {
    if (at % every === 0)
      context.fillText(clipped(layer, left < 100 ? 10 : 17), left - 6, 26 + (at + 0.5) * cell + 4);
  });
  context.textAlign = "center";
  const step = Math.ceil(22 / cell);
  for (let head = 0; head < columns; head += step)
    context.fillText(String(head), left + (head + 0.5) * cell, 18);
}
