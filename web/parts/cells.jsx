/** The numbers of a worked example in cells that can be edited; every change makes a new run. */
import { useEffect, useState } from "preact/hooks";
import { visible } from "./text.js";

/**
 * The matrices of a worked example. A changed number makes a new run, in which all steps are
 * computed again.
 * @param {{run: Run, scene: number, chosen: number, go: Go, transport: Transport}} props  `chosen`
 *   is the row of the query
 */
export function Cells({ run, scene, chosen, go, transport }) {
  const example = /** @type {ExampleFacts} */ (run.example);
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  useEffect(() => setProblem(null), [run.run]);
  /**
   * @type {(changed: {inputs?: Record<string, number[][]>, normalize?: string}) => Promise<void>}
   */
  const send = async (changed) => {
    const inputs = Object.fromEntries(example.inputs.map((one) => [one.name, one.numbers]));
    try {
      const body = { example: example.name, inputs, normalize: example.normalize, ...changed };
      const made = await transport.send?.("runs", body);
      setProblem(null);
      go({ run: made.run }, false);
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
  };
  /** @type {(name: string, i: number, j: number, text: string) => void} */
  const edit = (name, i, j, text) => {
    const x = Number(text.trim().replace("−", "-").replace(",", "."));
    const refused = (/** @type {string} */ why) =>
      setProblem(`“${visible(text.slice(0, 20))}” ${why}; the cell keeps its old number`);
    if (text.trim() === "" || Number.isNaN(x)) return refused("is not a number");
    if (Math.abs(x) > 1e6) return refused("is too large: numbers go from −1,000,000 to 1,000,000");
    setProblem(null);
    const inputs = Object.fromEntries(
      example.inputs.map((one) => [one.name, one.numbers.map((row) => [...row])]),
    );
    if (inputs[name][i][j] === x) return undefined;
    inputs[name][i][j] = x;
    return void send({ inputs });
  };
  const shown = example.scenes[scene]?.inputs ?? [];
  const edited = run.run !== `example-${example.name}`;
  return (
    <div class="stack">
      <div class="inputs">
        {example.inputs
          .filter((one) => shown.includes(one.name))
          .map((one) => (
            <table class="input">
              <caption>
                {one.name}
                <span class="soft">
                  {" "}
                  {one.numbers.length} × {one.numbers[0].length}
                </span>
              </caption>
              <tbody>
                {one.numbers.map((row, i) => (
                  <tr>
                    {one.rows ? (
                      <th scope="row" class={i === chosen ? "q" : ""}>
                        {visible(one.rows[i])}
                      </th>
                    ) : (
                      <th scope="row">
                        <span class="hidden">row {i + 1}</span>
                      </th>
                    )}
                    {row.map((x, j) => (
                      <td>
                        <Cell
                          key={run.run}
                          x={x}
                          name={`${one.name}, ${one.rows?.[i] ?? `row ${i + 1}`}, column ${j + 1}`}
                          edit={(/** @type {string} */ text) => edit(one.name, i, j, text)}
                          disabled={!transport.send}
                          width={widest(one.numbers)}
                        />
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          ))}
      </div>
      {problem && (
        <p class="failure" role="alert" style={{ margin: 0 }}>
          {problem}
        </p>
      )}
      <div class="row">
        {transport.send && (
          <span class="segments" role="group" aria-label="how scores become weights">
            {[
              ["softmax", "softmax"],
              ["by_sum", "divide by the sum"],
            ].map(([name, label]) => (
              <button
                type="button"
                aria-pressed={example.normalize === name}
                onClick={() => send({ normalize: name })}
              >
                {label}
              </button>
            ))}
          </span>
        )}
        {edited && (
          <button
            type="button"
            class="button"
            onClick={() => go({ run: `example-${example.name}` }, false)}
          >
            undo all changes
          </button>
        )}
        <span class="soft">{example.origin}</span>
      </div>
    </div>
  );
}

/** The width of a matrix's cells, in digits. @type {(numbers: number[][]) => number} */
const widest = (numbers) => Math.max(6, ...numbers.flat().map((x) => String(x).length)) + 2;

/**
 * One number. It is sent when the cell is left or Enter is pressed; Escape restores it.
 * @param {{x: number, name: string, edit: (text: string) => void, disabled: boolean, width:
 *   number}} props
 */
function Cell({ x, name, edit, disabled, width }) {
  const [text, setText] = useState(/** @type {string | null} */ (null));
  const leave = () => {
    if (text !== null) edit(text);
    setText(null);
  };
  /** @param {KeyboardEvent & {currentTarget: HTMLInputElement}} event */
  const pressKey = (event) => {
    if (event.key === "Enter") event.currentTarget.blur();
    if (event.key === "Escape") setText(null);
  };
  return (
    <input
      type="text"
      inputmode="decimal"
      class="cell"
      style={{ width: `${width}ch` }}
      aria-label={name}
      value={text ?? String(x).replace("-", "−")}
      disabled={disabled}
      onInput={(event) => setText(event.currentTarget.value)}
      onBlur={leave}
      onKeyDown={pressKey}
    />
  );
}
