/** Pointer gestures on the map: drag, wheel, pinch, double click, and a click on the overview. */
import { useEffect, useRef } from "preact/hooks";
import { clamp } from "../../parts/numbers.js";
import { cellSize, overviewBox, toCell, zoomAt } from "./viewport.js";

/** @typedef {{left: number, top: number}} Point  a pixel of the canvas */

/**
 * Return whether a point lies in a box.
 * @param {Point} point
 * @param {Box} box
 */
const inside = ({ left, top }, box) =>
  left >= box.left && top >= box.top && left < box.left + box.width && top < box.top + box.height;

/**
 * Return the event handlers of the map's frame; the wheel is handled by a listener, which may
 * prevent scrolling.
 * @param {{frame: {current: HTMLElement | null}, scene: {view: View, info: MapInfo, box: Box} |
 *   null, move: (view: View, step?: boolean) => void, point: (i: number, j: number, now?: boolean)
 *   => void, overview?: (scene: {view: View, info: MapInfo, box: Box}) => Box | null}} props
 *   `overview` is where an overview lies on the map, if it has one
 */
export function useGestures({ frame, scene, move, point, overview = overviewBox }) {
  // pointers that are down, by their id
  const pressed = useRef(/** @type {Map<number, Point>} */ (new Map()));
  const latest = useRef({ scene, move });
  latest.current = { scene, move };

  /** @type {(event: MouseEvent) => Point} */
  const position = (event) => {
    const edge = /** @type {HTMLElement} */ (frame.current).getBoundingClientRect();
    return { left: event.clientX - edge.left, top: event.clientY - edge.top };
  };

  useEffect(() => {
    /** @type {(event: WheelEvent) => void} */
    const wheel = (event) => {
      if (!latest.current.scene) return;
      event.preventDefault();
      const { view, info, box } = latest.current.scene;
      const { left, top } = position(event);
      const levels = clamp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0035), -1, 1);
      latest.current.move(zoomAt(view, info, box, levels, left, top));
    };
    const element = /** @type {HTMLElement} */ (frame.current);
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, []);

  if (!scene) return {};
  const { view, info, box } = scene;
  /** @type {(at: Point, now?: boolean) => void} */
  const pointAt = (at, now) => {
    if (!inside(at, box)) return;
    const [x, y] = toCell(view, info, box, at.left, at.top);
    point(Math.floor(y), Math.floor(x), now);
  };

  /** @type {(from: Point, to: Point, other: Point | undefined) => void} */
  const drag = (from, to, other) => {
    if (other) {
      /** @type {(a: Point) => number} */
      const distance = (a) => Math.hypot(a.left - other.left, a.top - other.top) || 1;
      const levels = Math.log2(distance(to) / distance(from));
      move(zoomAt(view, info, box, levels, (to.left + other.left) / 2, (to.top + other.top) / 2));
      return;
    }
    const size = cellSize(view, info);
    frame.current?.classList.add("dragging");
    move({
      ...view,
      x: view.x - (to.left - from.left) / size,
      y: view.y - (to.top - from.top) / size,
    });
  };

  return {
    /** @param {PointerEvent} event */
    onPointerDown(event) {
      const at = position(event);
      const map = overview(scene);
      if (map && inside(at, map)) {
        const x = ((at.left - map.left) / map.width) * info.n_k;
        const y = ((at.top - map.top) / map.height) * info.n_q;
        move({ ...view, x, y }, true);
        return;
      }
      frame.current?.setPointerCapture(event.pointerId);
      pressed.current.set(event.pointerId, at);
      pointAt(at, true);
    },
    /** @param {PointerEvent} event */
    onPointerMove(event) {
      const at = position(event);
      const from = pressed.current.get(event.pointerId);
      if (!from) return pointAt(at);
      const other = [...pressed.current].find(([id]) => id !== event.pointerId)?.[1];
      pressed.current.set(event.pointerId, at);
      return drag(from, at, other);
    },
    /** @param {PointerEvent} event */
    onPointerUp(event) {
      pressed.current.delete(event.pointerId);
      frame.current?.classList.remove("dragging");
    },
    /** @param {PointerEvent} event */
    onPointerCancel(event) {
      pressed.current.delete(event.pointerId);
    },
    /** @param {MouseEvent} event */
    onDblClick(event) {
      const at = position(event);
      if (inside(at, box)) move(zoomAt(view, info, box, 1.5, at.left, at.top), true);
    },
  };
}
