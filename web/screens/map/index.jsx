/** Map: the whole matrix of a head, from an overview down to the single weight. */
import { useMemo, useRef } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered, headName } from "../../parts/answered.jsx";
import { paletteColour } from "../../parts/colour.js";
import { useKeys } from "../../parts/hooks.js";
import { count } from "../../parts/numbers.js";
import { Term } from "../../parts/term.jsx";
import { number, perRun, shared, text } from "../../state/fields.js";
import { AGGREGATES, ColourTables, chosenPalette, withColours } from "./colouring.js";
import { lazyLabels } from "./fetching.js";
import { useGestures } from "./gestures.js";
import {
  useCanvasSize,
  useDrawing,
  useEffort,
  usePointedCell,
  useTileCache,
  useTileRequests,
  useViewport,
} from "./hooks.js";
import { CellReadout, ColourScale, LargestWeights, QualityNote } from "./side_panel.jsx";
import { Toolbar } from "./toolbar.jsx";
import { cellSize, tileLevel } from "./viewport.js";

export const title = "Map";
export const shows = "every weight of one head, as a map to zoom into";
export const needs = "tiles";
export const fields = {
  ...shared("layer", "head"),
  /** The centre of the map, in cells of the matrix, and its zoom. */
  column: perRun(number("x")),
  row: perRun(number("y")),
  zoom: perRun(number("z")),
  /** What a pixel shows of the weights that it covers. */
  aggregate: text("how", "share"),
  /** "root", "log" or "linear"; null follows the length of the text. */
  scale: text("scale"),
  /** Powers of two between which colours lie, as "low,high". */
  limits: text("lim"),
  palette: text("palette", "weights"),
};
export { MapScreen as view };

/**
 * The matrix of one head; the viewer starts afresh for a matrix of another size.
 * @param {ScreenProps} props
 */
function MapScreen(props) {
  const { run, attention, state, answers } = props;
  const info = useAnswer(answers, `runs/${run.run}/map`, { l: attention.l, h: state.head });
  return (
    <>
      <h2>The whole matrix</h2>
      <p class="lede">
        {count(attention.n_q)} queries down, {count(attention.n_k)} keys across:{" "}
        {count(attention.n_q * attention.n_k)} weights of {headName(attention, state.head)}, as{" "}
        <Term name="share" />, <Term name="max" /> or <Term name="lift" />. Zoom in until every cell
        shows its number.
      </p>
      <Answered answer={info}>
        {(/** @type {MapInfo} */ found) => (
          <Viewer key={attention.n_q + "x" + attention.n_k} info={found} {...props} />
        )}
      </Answered>
    </>
  );
}

/**
 * The map on its canvas, its toolbar, and what is written beside it.
 * @param {ScreenProps & {info: MapInfo}} props
 */
function Viewer({ run, attention, info, state, go, answers, transport, root, theme }) {
  const chosen = withColours(state.map, info, theme);
  const frame = useRef(/** @type {HTMLDivElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const queryField = useRef(/** @type {HTMLInputElement | null} */ (null));
  const { quality, scene: drawnScene, redraw } = useDrawing(canvas, root);
  const tables = useMemo(() => new ColourTables(), []);
  const labels = useMemo(() => lazyLabels(transport, run, redraw), [transport, run]);
  const tiles = useTileCache(transport, run, redraw);
  const size = useCanvasSize(frame, canvas, redraw);
  const { view, box, move, zoomBy, showAll, centre } = useViewport({ chosen, go, info, size });

  // The request of all tiles, and the cell that was last pointed at.
  const query = {
    l: attention.l,
    h: state.head,
    how: AGGREGATES[chosen.aggregate]?.from ?? "share",
  };
  const [cell, point] = usePointedCell({ answers, run, info, query });
  const cursor = cell && { i: cell.i, j: cell.j };
  /** @type {MapScene | null} */
  const scene = size &&
    view &&
    box && {
      ...{ ...size, view, info, box, tiles, tables, chosen, query, cursor },
      token: (axis, position) => labels.token(attention, axis, position),
      weight: (i, j) => labels.weight(query, i, j),
      colourAt: (t) => paletteColour(chosenPalette(chosen), t),
    };

  // Draw, and request what is visible; then the same in more detail where tiles are sampled.
  drawnScene.current = scene;
  const effort = useEffort(quality, JSON.stringify([view, query]), transport.canRun && !info.top);
  useTileRequests(scene, effort, redraw);
  const pointers = useGestures({ frame, scene, move, point });

  /** @type {(i: number, j: number) => void} */
  const jump = (i, j) => {
    centre(i, j);
    point(i, j, true);
  };
  /** @type {(event: KeyboardEvent) => void} */
  const pressKey = (event) => {
    if (event.target !== frame.current || !view) return;
    const x = Math.floor(view.x);
    const y = Math.floor(view.y);
    const stride = 60 / cellSize(view, info);
    const arrow = ARROWS[event.key];
    if (arrow && event.shiftKey)
      point((cursor?.i ?? y) + arrow[1], (cursor?.j ?? x) + arrow[0], true);
    else if (arrow) move({ ...view, x: view.x + arrow[0] * stride, y: view.y + arrow[1] * stride });
    else if (event.key === "+" || event.key === "=") zoomBy(1);
    else if (event.key === "-") zoomBy(-1);
    else if (event.key === "Home") showAll();
    else if (event.key === "End") jump(info.n_q - 1, info.n_k - 1);
    else if (event.key === "Enter")
      point(Math.min(info.n_q - 1, y), Math.min(info.n_k - 1, x), true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  useKeys(root, (event) => {
    if (event.key !== "g") return false;
    queryField.current?.focus();
    queryField.current?.select();
    return true;
  });

  const bin = view && size ? tileLevel(view, info, size.dense).bin : 1;
  return (
    <>
      <Toolbar
        run={run}
        l={attention.l}
        answers={answers}
        info={info}
        chosen={chosen}
        go={go}
        zoomBy={zoomBy}
        showAll={showAll}
        jump={jump}
        queryField={queryField}
      />
      <div class="mapped">
        <div
          class="viewer"
          ref={frame}
          role="application"
          tabindex={0}
          aria-roledescription="map"
          onKeyDown={pressKey}
          {...pointers}
          aria-label={
            `map of ${count(info.n_q)} queries and ${count(info.n_k)} keys; arrows move it, ` +
            "plus and minus zoom, Shift and arrows go from cell to cell, Home shows all"
          }
        >
          <canvas ref={canvas} data-picture="map" />
        </div>
        <div class="stack mapside">
          <div>
            <QualityNote quality={quality} bin={bin} top={info.top} />
          </div>
          <output class="readout" aria-live="polite">
            <CellReadout cell={cell} bin={bin} />
          </output>
          <ColourScale
            chosen={chosen}
            go={go}
            info={info}
            bin={bin}
            sampled={quality.sampled > 0}
          />
          <details class="map-table">
            <summary>
              the largest weights of {cursor ? `query ${count(cursor.i)}` : "a query"}, as a table
            </summary>
            {cursor ? (
              <LargestWeights
                run={run}
                answers={answers}
                jump={jump}
                l={query.l}
                h={query.h}
                i={cursor.i}
              />
            ) : (
              <p class="soft">Point at a cell first, or go to one.</p>
            )}
          </details>
        </div>
      </div>
    </>
  );
}

/** @type {Record<string, number[]>} */
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
