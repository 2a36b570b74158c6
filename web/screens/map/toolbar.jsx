/** The map's toolbar: aggregate, scale, palette, zoom, and a form that goes to a cell. */
import { useState } from "preact/hooks";
import { PALETTES } from "../../parts/colour.js";
import { clamp } from "../../parts/numbers.js";
import { AGGREGATES } from "./colouring.js";

/**
 * What a pixel shows, in which colours, how large, and where.
 * @param {{run: Run, l: number, answers: import("../../answers.js").Answers, info: MapInfo, chosen:
 *   State["map"], go: Go, zoomBy: (levels: number) => void, showAll: () => void, jump: (i: number,
 *   j: number) => void, queryField: {current: HTMLInputElement | null}}} props
 */
export function Toolbar({ run, l, answers, info, chosen, go, zoomBy, showAll, jump, queryField }) {
  const available = Object.entries(AGGREGATES).filter(([, { from }]) => info.how.includes(from));
  const palette = chosen.palette.replace(/-(light|dark)$/, "");
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  /**
   * Return the position that a field names: a number, or the first token or word with this text.
   * @param {FormDataEntryValue | null} field
   * @param {Axis} axis
   */
  const position = async (field, axis) => {
    const text = String(field ?? "").trim();
    if (/^[0-9]+$/.test(text)) return Number(text);
    const stop = Math.min(4096, axis === "q" ? info.n_q : info.n_k);
    /** @type {TokenRange} */
    const found = await answers.ask(`runs/${run.run}/tokens`, { l, axis, start: 0, stop }).promise;
    const same = (/** @type {string} */ token) =>
      token.trim().replace(/^·/, "").toLowerCase() === text.toLowerCase();
    const word = found.names?.findIndex(same) ?? -1;
    const at =
      word >= 0 && found.words
        ? found.words.indexOf(word + found.words[0])
        : found.tokens.findIndex(same);
    return at < 0 ? null : at;
  };
  /** @type {(event: Event & {currentTarget: HTMLFormElement}) => void} */
  const submit = async (event) => {
    event.preventDefault();
    const fields = new FormData(event.currentTarget);
    const [i, j] = await Promise.all([
      position(fields.get("i"), "q"),
      position(fields.get("j"), "k"),
    ]);
    setProblem(i === null || j === null ? "no token of this text is that" : null);
    if (i !== null && j !== null) jump(clamp(i, 0, info.n_q - 1), clamp(j, 0, info.n_k - 1));
  };
  return (
    <div class="mapbar">
      <span class="segments" role="group" aria-label="what a pixel shows">
        {available.map(([name, { means }]) => (
          <button
            type="button"
            title={means}
            aria-pressed={chosen.aggregate === name}
            onClick={() => go({ map: { aggregate: name, limits: null } })}
          >
            {name}
          </button>
        ))}
      </span>
      <span class="segments" role="group" aria-label="scale">
        {[
          ["root", "√", "as on the other screens"],
          ["log", "log", "for weights of very different sizes"],
          ["linear", "linear", "from the lower limit to the upper one"],
        ].map(([name, label, title]) => (
          <button
            type="button"
            title={title}
            aria-label={name === "root" ? "square root" : name}
            aria-pressed={chosen.scale === name}
            onClick={() => go({ map: { scale: name, limits: null } })}
          >
            {label}
          </button>
        ))}
      </span>
      <label class="labelled">
        colours{" "}
        <select
          value={palette}
          onChange={(event) => go({ map: { palette: event.currentTarget.value } })}
        >
          {["weights", ...Object.keys(PALETTES)].map((name) => (
            <option value={name} selected={name === palette}>
              {name}
            </option>
          ))}
        </select>
      </label>
      <span class="segments" role="group" aria-label="zoom">
        <button type="button" aria-label="zoom out" onClick={() => zoomBy(-1)}>
          −
        </button>
        <button type="button" aria-label="zoom in" onClick={() => zoomBy(1)}>
          +
        </button>
        <button type="button" onClick={showAll}>
          all
        </button>
      </span>
      <form class="goto" onSubmit={submit}>
        <label class="labelled">
          query{" "}
          <input
            class="field"
            name="i"
            ref={queryField}
            placeholder="number or word"
            required
            autocomplete="off"
          />
        </label>
        <label class="labelled">
          key{" "}
          <input class="field" name="j" placeholder="number or word" required autocomplete="off" />
        </label>
        <button class="button">go</button>
        {problem && (
          <span class="soft" role="alert">
            {problem}
          </span>
        )}
      </form>
    </div>
  );
}
