/** The state of the map's viewer: canvas, viewport, tiles, and the cell under the pointer. */
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { themeColour } from "../../parts/answered.jsx";
import { context2d } from "./colouring.js";
import { draw, hatchPattern } from "./draw.js";
import { TileCache, tileKey, trackKey } from "./fetching.js";
import {
  LABELLED,
  NUMBERED,
  cellSize,
  clampView,
  initialView,
  matrixBox,
  tileLevel,
  visibleCells,
  visibleTiles,
  zoomAt,
} from "./viewport.js";

/** @typedef {{current: HTMLElement | null}} ElementRef */
/** @typedef {{current: HTMLCanvasElement | null}} CanvasRef */

/**
 * Keep the canvas as large as its frame, and return its size, null before the first layout.
 * @param {ElementRef} frame
 * @param {CanvasRef} canvas
 * @param {() => void} redraw
 * @returns {CanvasSize | null}
 */
export function useCanvasSize(frame, canvas, redraw) {
  const [size, setSize] = useState(/** @type {CanvasSize | null} */ (null));
  useEffect(() => {
    const measure = () => {
      if (!frame.current || !canvas.current) return;
      const { clientWidth: width, clientHeight: height } = frame.current;
      const dense = Math.min(2, devicePixelRatio || 1);
      canvas.current.width = Math.round(width * dense);
      canvas.current.height = Math.round(height * dense);
      setSize({ width, height, dense });
      redraw();
    };
    const observer = new ResizeObserver(measure);
    observer.observe(/** @type {HTMLElement} */ (frame.current));
    return () => observer.disconnect();
  }, []);
  return size;
}

const COLOURS = "paper raised ink soft line faint warn bar query key sans serif figures".split(" ");

/**
 * Return how exact the drawn tiles are, a ref for the scene, and `redraw`, which draws the scene in
 * the next frame.
 * @param {CanvasRef} canvas
 * @param {HTMLElement} root
 */
export function useDrawing(canvas, root) {
  const scene = useRef(/** @type {MapScene | null} */ (null));
  const frame = useRef(0);
  const [quality, setQuality] = useState(
    /** @type {Quality} */ ({ exact: 0, sampled: 0, samples: 0, missing: 0, waiting: 0 }),
  );
  const redraw = useCallback(() => {
    cancelAnimationFrame(frame.current);
    frame.current = requestAnimationFrame(() => {
      if (!scene.current || !canvas.current) return;
      const context = context2d(canvas.current);
      const colours = Object.fromEntries(COLOURS.map((name) => [name, themeColour(root, name)]));
      const drawn = draw(context, {
        ...scene.current,
        colours,
        hatch: hatchPattern(context, colours),
      });
      const next = { ...drawn, waiting: scene.current.tiles.waiting };
      setQuality((old) => (JSON.stringify(next) === JSON.stringify(old) ? old : next));
    });
  }, [root]);
  return { quality, scene, redraw };
}

/**
 * Return the cache of tiles of a run, closed with the viewer.
 * @param {Transport} transport
 * @param {Run} run
 * @param {() => void} redraw
 */
export function useTileCache(transport, run, redraw) {
  const tiles = useMemo(
    () =>
      new TileCache(
        (path, query, signal) => transport.bytes(`runs/${run.run}/${path}`, query, signal),
        redraw,
      ),
    [run, transport],
  );
  useEffect(() => () => tiles.close(), [tiles]);
  return tiles;
}

/** @param {ArrayBuffer} buffer */
const readTile = (buffer) => new Uint16Array(buffer);
/** @param {ArrayBuffer} buffer */
const readTrack = (buffer) => new Float32Array(buffer);

/**
 * After every render, request the visible tiles and tracks, and the coarsest tile for the overview.
 * @param {MapScene | null} scene
 * @param {number} effort  of the visible tiles; the overview's is 1
 * @param {() => void} redraw
 */
export function useTileRequests(scene, effort, redraw) {
  useEffect(() => {
    if (!scene) return;
    const { view, info, box, query, dense } = scene;
    const { z, bin } = tileLevel(view, info, dense);
    const span = info.tile * bin;
    const { i0, i1, j0, j1 } = visibleCells(scene);
    const places = [...(z > 0 ? [{ z: 0, x: 0, y: 0 }] : []), ...visibleTiles(view, info, box, z)];
    const requests = places.map((at) => ({
      key: tileKey(query, at),
      path: `tiles/${at.z}/${at.x}/${at.y}`,
      query: /** @type {Query} */ ({ ...query }),
      read: /** @type {(buffer: ArrayBuffer) => Tile["values"]} */ (readTile),
      effort: at.z === z ? effort : 1,
    }));
    /** @type {(kind: string, from: number, to: number) => void} */
    const addTracks = (kind, from, to) => {
      for (let x = Math.floor(from / span); x < Math.ceil(to / span); x += 1) {
        const key = trackKey(query, kind, z, x);
        requests.push({
          key,
          path: `tracks/${z}/${x}`,
          query: { l: query.l, h: query.h, kind },
          read: readTrack,
          effort: 1,
        });
      }
    };
    addTracks("received", j0, j1);
    addTracks("entropy", i0, i1);
    scene.tiles.want(requests);
    redraw();
  });
}

const EFFORTS = [1, 4, 16]; // as the API takes them: more effort reads more queries for a pixel

/**
 * Return the effort with which tiles are requested: while sampled tiles stay in view, it rises from
 * 1 to 4 and 16.
 * @param {Quality} quality
 * @param {string} place  a text that changes with the view; a new place starts from 1
 * @param {boolean} canRefine  false for an exported file, which has nothing better
 */
export function useEffort(quality, place, canRefine) {
  const [effort, setEffort] = useState(EFFORTS[0]);
  useEffect(() => setEffort(EFFORTS[0]), [place]);
  useEffect(() => {
    const next = EFFORTS[EFFORTS.indexOf(effort) + 1];
    if (!quality.sampled || quality.missing || quality.waiting || !next || !canRefine)
      return undefined;
    const timer = setTimeout(() => setEffort(next), 400);
    return () => clearTimeout(timer);
  }, [quality, effort]);
  return effort;
}

/**
 * Return the visible part of the matrix and the functions that change it. While the map moves the
 * view is kept here; the state, and so the page's address, follows after 180 ms.
 * @param {{chosen: State["map"], go: Go, info: MapInfo, size: CanvasSize | null}} props
 */
export function useViewport({ chosen: { column, row, zoom }, go, info, size }) {
  const moving = useRef(/** @type {View | null} */ (null));
  const timer = useRef(/** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined));
  const [, rerender] = useState(0);
  const kept =
    column !== null && row !== null && zoom !== null ? { x: column, y: row, z: zoom } : null;
  const target = moving.current ?? kept ?? (size && initialView(info, size));
  const box =
    size && target ? matrixBox(size.width, size.height, cellSize(target, info) >= LABELLED) : null;
  const view = target && box && clampView(target, info, box);

  /** @type {(next: View, step?: boolean) => void} */
  const move = (next, step = false) => {
    if (!box) return;
    moving.current = clampView(next, info, box);
    rerender((n) => n + 1);
    clearTimeout(timer.current);
    const store = () => {
      const { x, y, z } = moving.current ?? next;
      moving.current = null;
      const digits = Math.max(0, Math.ceil(z - info.max_zoom)) + 2;
      const centre = { column: Number(x.toFixed(digits)), row: Number(y.toFixed(digits)) };
      go({ map: { ...centre, zoom: Number(z.toFixed(4)) } }, step);
    };
    if (step) store();
    else timer.current = setTimeout(store, 180);
  };
  /** @type {(levels: number) => void} */
  const zoomBy = (levels) => {
    if (!view || !box) return;
    move(zoomAt(view, info, box, levels, box.left + box.width / 2, box.top + box.height / 2), true);
  };
  const showAll = () => {
    moving.current = null;
    go({ map: { column: null, row: null, zoom: null } });
  };
  /** Centre a cell, large enough for its number. @type {(i: number, j: number) => void} */
  const centre = (i, j) => {
    if (!view) return;
    moving.current = null;
    const z = Math.max(view.z, info.max_zoom + Math.log2(NUMBERED + 8));
    go({ map: { column: j + 0.5, row: i + 0.5, zoom: Number(z.toFixed(4)) } });
  };
  return { view, box, move, zoomBy, showAll, centre };
}

/**
 * Return the cell last pointed at, computed by the server in float64, and `point`, which requests
 * another.
 * @param {{answers: import("../../answers.js").Answers, run: Run, info: MapInfo, query: MapQuery}}
 *   props
 */
export function usePointedCell({ answers, run, info, query }) {
  const [cell, setCell] = useState(/** @type {Cell | null} */ (null));
  const request = useRef({
    timer: /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined),
    key: "",
  });
  /** @type {(i: number, j: number, now?: boolean) => void} */
  const point = (i, j, now = false) => {
    const key = `${query.l}/${query.h}/${i}/${j}`;
    if (key === request.current.key || i < 0 || j < 0 || i >= info.n_q || j >= info.n_k) return;
    request.current.key = key;
    clearTimeout(request.current.timer);
    const fetchCell = async () => {
      const { promise } = answers.ask(`runs/${run.run}/cell`, { l: query.l, h: query.h, i, j });
      const found = await promise.catch((error) => ({ i, j, error }));
      if (request.current.key === key) setCell(found);
    };
    request.current.timer = setTimeout(fetchCell, now ? 0 : 70);
  };
  useEffect(() => {
    if (!cell) return;
    request.current.key = "";
    point(cell.i, cell.j, true);
  }, [query.l, query.h]);
  return /** @type {const} */ ([cell, point]);
}
