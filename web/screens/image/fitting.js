/** Whether a picture has the shape of a grid of square patches, as ts.plot.image decides it. */

/**
 * @typedef {{rows: number, columns: number}} Size
 */

/**
 * Return whether a picture has the shape of a grid, to half a patch and a tenth of its side: models
 * that take any shape round it to whole patches.
 * @param {number} width
 * @param {number} height
 * @param {Size} grid
 */
export function fits(width, height, { rows, columns }) {
  const off = Math.min(
    Math.abs((height * columns) / width - rows),
    Math.abs((width * rows) / height - columns),
  );
  return off <= Math.min(0.5, 0.1 * rows, 0.1 * columns);
}

/**
 * Return the sentence for a picture that does not fit: what it is, and what would fit.
 * @param {number} width
 * @param {number} height
 * @param {Size} grid
 */
export function misfit(width, height, { rows, columns }) {
  const side = Math.min(width / columns, height / rows);
  const part = `${Math.round(side * columns)} x ${Math.round(side * rows)}`;
  return (
    `This picture has ${width} x ${height} pixels (width x height), and ${rows} rows x ${columns} ` +
    `columns of square patches do not cover that. Choose what the model read, such as ${part} ` +
    "pixels of it."
  );
}
