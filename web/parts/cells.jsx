/** The numbers of a worked example in cells that can be edited; every change makes a new run. */
import { useRef, useState } from "preact/hooks";
import { clamp } from "./numbers.js";
import { visible } from "./text.js";

const STEP = 0.01; // of an arrow key, and of a pixel while a number is dragged
const LARGE_STEP = 0.1; // the same with Shift
const CLICK = 4; // pixels within which a press is a click, and drags nothing
const LARGEST = 1e6;

/**
 * The matrices of a worked example. A changed number makes a new run, in which all steps are
 * computed again.
 * @param {{run: Run, scene: number, chosen: number, go: Go, transport: Transport, live:
 *   import("./live.js").Live}} props  `chosen` is the row of the query
 */
export function Cells({ run, scene, chosen, go, transport, live }) {
  const example = /** @type {ExampleFacts} */ (run.example);
  /** @type {(name: string, i: number, j: number, x: number) => void} */
  const put = (name, i, j, x) => {
    const row = live.inputs[name][i];
    live.report(null);
    if (row[j] === x) return;
    const changed = row.map((old, at) => (at === j ? x : old));
    live.set(name, i, changed);
  };
  /** @type {(name: string, i: number, j: number, text: string) => void} */
  const edit = (name, i, j, text) => {
    const x = parse(text);
    if (x !== null && Math.abs(x) <= LARGEST) return put(name, i, j, x);
    const why =
      x === null ? "is not a number" : "is too large: numbers go from −1,000,000 to 1,000,000";
    return live.report(`“${visible(text.slice(0, 20))}” ${why}; the cell keeps its old number`);
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
                {one.numbers.map((_, i) => (
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
                    {live.inputs[one.name][i].map((x, j) => (
                      <td>
                        <Cell
                          x={x}
                          name={`${one.name}, ${one.rows?.[i] ?? `row ${i + 1}`}, column ${j + 1}`}
                          edit={(text) => edit(one.name, i, j, text)}
                          put={(number) => put(one.name, i, j, number)}
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
      {transport.send && (
        <p class="soft hint">
          Drag a number sideways, use ↑ and ↓ in its cell, or type. With Shift, steps are ten times
          as large.
        </p>
      )}
      {live.problem && (
        <p class="failure" role="alert" style={{ margin: 0 }}>
          {live.problem}
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
                onClick={() => live.change({ normalize: name })}
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

/** Return the number of a text, or null where it is none. @param {string} text */
function parse(text) {
  const x = Number(text.trim().replace("−", "-").replace(",", "."));
  return text.trim() === "" || Number.isNaN(x) ? null : x;
}

/** Return a sum of steps without the digits of rounding. @param {number} x */
const tidy = (x) => clamp(Number(x.toFixed(9)), -LARGEST, LARGEST);

/**
 * One number. Dragged sideways and by arrow keys it changes at once; typed text counts when the
 * cell is left or Enter is pressed. Escape restores what was there before.
 * @param {{x: number, name: string, edit: (text: string) => void, put: (x: number) => void,
 *   disabled: boolean, width: number}} props
 */
function Cell({ x, name, edit, put, disabled, width }) {
  const [text, setText] = useState(/** @type {string | null} */ (null));
  /** @type {{current: {left: number, x: number, moves: boolean} | null}} */
  const drag = useRef(null);
  const [isDragged, setDragged] = useState(false);
  const leave = () => {
    if (text !== null) edit(text);
    setText(null);
  };
  /** @param {KeyboardEvent & {currentTarget: HTMLInputElement}} event */
  const pressKey = (event) => {
    if (event.key === "Enter") event.currentTarget.blur();
    if (event.key === "Escape") {
      if (drag.current?.moves) put(drag.current.x);
      drag.current = null;
      setDragged(false);
      setText(null);
    }
    const side = event.key === "ArrowUp" ? 1 : event.key === "ArrowDown" ? -1 : 0;
    const from = text === null ? x : parse(text);
    if (!side || from === null) return;
    event.preventDefault();
    setText(null);
    put(tidy(from + side * (event.shiftKey ? LARGE_STEP : STEP)));
  };

  // A press that does not move is a click: it chooses the whole number, to be typed over.
  /** @param {PointerEvent & {currentTarget: HTMLInputElement}} event */
  const press = (event) => {
    if (text !== null || event.button !== 0 || disabled) return;
    // A quick move leaves the cell at once.
    event.currentTarget.setPointerCapture(event.pointerId);
    drag.current = { left: event.clientX, x, moves: false };
  };
  /** @param {PointerEvent & {currentTarget: HTMLInputElement}} event */
  const move = (event) => {
    const begun = drag.current;
    if (!begun) return;
    const along = event.clientX - begun.left;
    if (!begun.moves && Math.abs(along) < CLICK) return;
    if (!begun.moves) {
      begun.moves = true;
      setDragged(true);
    }
    put(tidy(begun.x + Math.round(along) * (event.shiftKey ? LARGE_STEP : STEP)));
  };
  /** @param {PointerEvent & {currentTarget: HTMLInputElement}} event */
  const release = (event) => {
    const begun = drag.current;
    drag.current = null;
    setDragged(false);
    // A finger that has dragged needs no keyboard on the screen.
    if (!begun || (begun.moves && event.pointerType === "touch")) return;
    event.currentTarget.focus({ preventScroll: true });
    if (!begun.moves) event.currentTarget.select();
  };
  return (
    <input
      type="text"
      inputmode="decimal"
      role="spinbutton"
      class={`cell ${isDragged ? "dragged" : ""}`}
      style={{ width: `${width}ch` }}
      aria-label={name}
      aria-valuenow={x}
      autocomplete="off"
      value={text ?? String(x).replace("-", "−")}
      disabled={disabled}
      onInput={(event) => setText(event.currentTarget.value)}
      onBlur={leave}
      onKeyDown={pressKey}
      onPointerDown={press}
      onPointerMove={move}
      onPointerUp={release}
      onPointerCancel={() => {
        drag.current = null;
        setDragged(false);
      }}
      // Otherwise the browser would mark text while the number is dragged.
      onMouseDown={(event) => text === null && event.preventDefault()}
    />
  );
}
