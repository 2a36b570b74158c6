/**
 * The names of worked examples as runs. A name holds what was changed, so that its link lasts:
 * `example-journey~x.2.0_-0.57~by_sum`. explorer/example_names.py reads and writes the same names.
 */
import { Failure } from "../transport/http.js";
import { withCommas } from "./params.js";

/**
 * @typedef {{name: string, numbers: number[][], rows: string[] | null}} Input
 * @typedef {{name: string, inputs: Input[]}} Example
 * @typedef {{inputs: Record<string, number[][]>, normalize: "softmax" | "by_sum"}} Changed  all
 *   matrices, those included that did not change
 */

export const PREFIX = "example-";
const BY_SUM = "by_sum";
const MOST_NAME = 6000;
const CHANGE =
  /^([A-Za-z0-9_-]{1,40})\.([0-9]{1,2})\.([0-9]{1,2})_(-?[0-9]{1,7}(?:\.[0-9]{1,25})?(?:e-[0-9]{1,3})?)$/;

/** The name of an input as it stands in a run's name. @type {(name: string) => string} */
const inName = (name) => name.replaceAll(" ", "-");

/**
 * Return the name of an example with these matrices; cells that did not change are left out.
 * @type {(example: Example, changed: Changed) => string}
 */
export function nameOf(example, { inputs, normalize }) {
  const changes = example.inputs.flatMap(({ name, numbers }) =>
    numbers.flatMap((row, i) =>
      row.flatMap((old, j) => {
        const x = inputs[name][i][j];
        return x === old ? [] : [`${inName(name)}.${i}.${j}_${x}`];
      }),
    ),
  );
  const named = [PREFIX + example.name, ...changes];
  return (normalize === BY_SUM ? [...named, BY_SUM] : named).join("~");
}

/**
 * Return what a name changes in an example; throw a Failure for what is no change.
 * @type {(run: string, example: Example) => Changed}
 */
export function parseName(run, example) {
  if (run.length > MOST_NAME)
    throw new Failure(
      `a run's name has at most ${withCommas(MOST_NAME)} characters, not ${withCommas(run.length)}`,
      "bad-name",
    );
  const [first, ...changes] = run.split("~");
  const inputs = Object.fromEntries(
    example.inputs.map(({ name, numbers }) => [name, numbers.map((row) => [...row])]),
  );
  const known = example.inputs.map(({ name }) => inName(name));
  /** @type {Changed["normalize"]} */
  let normalize = "softmax";
  for (const change of changes) {
    if (change === BY_SUM) {
      normalize = BY_SUM;
      continue;
    }
    const [, name, i, j, x] = change.match(CHANGE) ?? [];
    const own = example.inputs[known.indexOf(name)];
    if (own?.numbers[Number(i)]?.[Number(j)] === undefined)
      throw new Failure(
        `"${change.slice(0, 40)}" is no change of ${first}; a change is ${known[0]}.0.0_1.5, ` +
          `an input with row and column from 0 and the number, or ${BY_SUM}; there are ` +
          known.join(", "),
        "unknown-run",
      );
    inputs[own.name][Number(i)][Number(j)] = Number(x);
  }
  return { inputs, normalize };
}
