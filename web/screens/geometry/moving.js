/** Points of a worked example that are moved in the plane: their vectors in the space behind it. */
import { dot } from "../../parts/numbers.js";

/**
 * @typedef {Pick<PlaneInSpace, "axes" | "centre">} Axes
 * @typedef {Axes & {released: boolean}} HeldPlane  the plane at the beginning of a move, which
 *   stays until the last answer after the point was released
 * @typedef {{isHeld: boolean, handles: number[], move: (at: number, to: number[]) => void, release:
 *   () => void}} Moving  `handles` are the points that can be moved, one for each row of the
 *   inputs; `to` is a place in the plane
 */

/** Return where a vector is in a plane. @type {(vector: number[], plane: Axes) => number[]} */
const project = (vector, { axes, centre }) => {
  const centred = vector.map((x, m) => x - centre[m]);
  return axes.map((axis) => dot(centred, axis));
};

/**
 * Return the points in a plane that is held, before attention where the inputs are now.
 * @type {(space: PlaneInSpace, inputs: number[][], plane: Axes) => {before: number[][], after:
 *   number[][]}}
 */
export const drawn = (space, inputs, plane) => ({
  before: space.rows.map((row) => project(inputs[row], plane)),
  after: space.after.map((vector) => project(vector, plane)),
});

/**
 * Return a vector that was moved to a place in the plane; what is outside of the plane stays.
 * @type {(vector: number[], to: number[], plane: Axes) => number[]}
 */
export function moved(vector, to, plane) {
  const from = project(vector, plane);
  const [dx, dy] = to.map((x, axis) => x - from[axis]);
  // Three decimals: as fine as a pixel, and short enough for a cell.
  return vector.map((x, m) =>
    Number((x + dx * plane.axes[0][m] + dy * plane.axes[1][m]).toFixed(3)),
  );
}
