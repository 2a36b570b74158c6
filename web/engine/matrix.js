/** Matrices as rows of float64 numbers, and the expressions by which worked examples are formed. */

/** @typedef {number[][]} Matrix */
/** @typedef {string | [string, ...any[]]} Expression  see tasks/explaining/worked.py */

/** @type {(numbers: number[]) => number} */
export const sum = (numbers) => numbers.reduce((total, x) => total + x, 0);

/** @type {(a: number[], b: number[]) => number} */
export const dot = (a, b) => a.reduce((sum, x, m) => sum + x * b[m], 0);

/** @type {(a: Matrix) => Matrix} */
export const transpose = (a) => (a[0] ?? []).map((_, m) => a.map((row) => row[m]));

/** @type {(a: Matrix, b: Matrix) => Matrix} */
export function matmul(a, b) {
  const columns = transpose(b);
  return a.map((row) => columns.map((column) => dot(row, column)));
}

/** Return a vector of zeros. @type {(n: number) => number[]} */
export const zeros = (n) => new Array(n).fill(0);

/** Return Σ weights · rows. @type {(weights: number[], rows: Matrix) => number[]} */
export const weigh = (weights, rows) =>
  (rows[0] ?? []).map((_, m) => weights.reduce((sum, w, j) => sum + w * rows[j][m], 0));

/** @type {Record<string, (a: any, ...rest: any[]) => Matrix>} */
const OPERATIONS = {
  matmul,
  transpose,
  add: (a, b) =>
    a.map((/** @type {number[]} */ row, /** @type {number} */ i) =>
      row.map((x, m) => x + b[b.length === 1 ? 0 : i][m]),
    ),
  relu: (a) => a.map((/** @type {number[]} */ row) => row.map((x) => Math.max(0, x))),
  below: (a, b) => [...a, ...b],
  with_ones: (a) => a.map((/** @type {number[]} */ row) => [...row, 1]),
  rows: (a, ...which) => which.map((i) => a[i]),
  repeat: (a, times) => a.map((/** @type {number[]} */ [x]) => new Array(times).fill(x)),
  identity: (n) => Array.from({ length: n }, (_, i) => zeros(n).map((x, j) => (i === j ? 1 : x))),
};

/**
 * Return the matrix of an expression; numbers in it are row numbers and sizes.
 * @type {(expression: Expression, inputs: Record<string, Matrix>) => Matrix}
 */
export function evaluate(expression, inputs) {
  if (typeof expression === "string") return inputs[expression];
  const [operation, ...given] = expression;
  return OPERATIONS[operation](
    .../** @type {[any]} */ (
      given.map((part) => (typeof part === "number" ? part : evaluate(part, inputs)))
    ),
  );
}

/**
 * Return the singular values of a matrix, the largest first, and the direction of each in the space
 * of its rows: columns are rotated in pairs until they are orthogonal (Hestenes 1958).
 * @type {(a: Matrix) => {length: number, axis: number[]}[]}
 */
export function singular(a) {
  const n = a[0]?.length ?? 0;
  const columns = transpose(a);
  const axes = OPERATIONS.identity(n);
  for (let sweep = 0, turned = true; turned && sweep < 60; sweep += 1) {
    turned = false;
    for (let p = 0; p < n; p += 1)
      for (let q = p + 1; q < n; q += 1) {
        const [alpha, beta] = [dot(columns[p], columns[p]), dot(columns[q], columns[q])];
        const gamma = dot(columns[p], columns[q]);
        if (Math.abs(gamma) <= 1e-15 * Math.sqrt(alpha * beta)) continue;
        turned = true;
        const zeta = (beta - alpha) / (2 * gamma);
        const t = (zeta < 0 ? -1 : 1) / (Math.abs(zeta) + Math.hypot(1, zeta));
        const c = 1 / Math.hypot(1, t);
        for (const both of [columns, axes]) {
          const [first, second] = [both[p], both[q]];
          both[p] = first.map((x, m) => c * (x - t * second[m]));
          both[q] = first.map((x, m) => c * (t * x + second[m]));
        }
      }
  }
  return columns
    .map((column, m) => ({ length: Math.sqrt(dot(column, column)), axis: axes[m] }))
    .sort((one, other) => other.length - one.length);
}
