/**
 * What if: change one attention, and see one query and the model's output before and after, on one
 * fixed scale.
 */
import { useState } from "preact/hooks";
import { useAnswer } from "../answers.js";
import { css, weightColour } from "./colour.js";
import { full, percent, short } from "./numbers.js";
import { Term } from "./term.jsx";
import { visible } from "./text.js";

/**
 * Buttons that change the definition of one attention, and what follows from the change.
 * @param {{run: Run, attention: Attention, h: number, i: number, keyWords: TokenRange | null,
 *   state: State, go: Go, answers: import("../answers.js").Answers, transport: Transport, theme:
 *   Theme, query: string}} props  `query` is the word that is followed
 */
export function WhatIf({
  run,
  attention,
  h,
  i,
  keyWords,
  state,
  go,
  answers,
  transport,
  theme,
  query,
}) {
  const edits = new Set((state.edits ?? "").split(",").filter(Boolean));
  const [chosen, setOpen] = useState(/** @type {boolean | null} */ (null));
  const open = chosen ?? edits.size > 0;
  // a handout holds what its lesson changes, and no other change
  const isRecorded = Boolean(transport.handout && !run.example && edits.size);
  const found = useAnswer(
    answers,
    edits.size && (isRecorded || attention.has?.trace !== false) ? `runs/${run.run}/whatif` : null,
    {
      ...{ l: attention.l, h, i, edits: state.edits },
    },
  );
  // a file runs no model, and computes worked examples by itself
  if (!transport.canRun && !run.example && !isRecorded) return null;
  if (attention.has?.trace === false && !isRecorded)
    return edits.size ? (
      <p class="failure" role="status">
        A what-if needs the queries and keys: {attention.why?.trace}.
      </p>
    ) : null;
  /** @type {(name: string, on: boolean) => void} */
  const set = (name, on) => {
    const kept = [...edits].filter((one) => one.split(":")[0] !== name.split(":")[0]);
    go({ edits: [...kept, ...(on ? [name] : [])].join(",") || null }, false);
  };
  const heat = Number([...edits].find((one) => one.startsWith("t:"))?.slice(2) ?? 1);
  const hidden = [...edits].find((one) => one.startsWith("hide:"))?.slice(5);
  /** @type {(name: string, label: any, said: string) => any} */
  const button = (name, label, said) => (
    <button
      type="button"
      class="button"
      aria-pressed={edits.has(name)}
      title={said}
      onClick={() => set(name, !edits.has(name))}
    >
      {label}
    </button>
  );
  const masks = attention.mask !== "everyone";
  return (
    <section class="what-if card" aria-label="what if">
      <button type="button" class="fold" aria-expanded={open} onClick={() => setOpen(!open)}>
        <b>What if …</b> <span class="soft">change this attention and see what happens</span>
      </button>
      {open && isRecorded && (
        <p class="soft">Recorded for this change alone: {[...edits].join(", ")}.</p>
      )}
      {open && !isRecorded && (
        <div class="row switches">
          {button("scale", "not ÷ √d", "scores are not divided")}
          {masks && button("mask", "no mask", "every key is visible")}
          {button("sum", "by sum", "divide by the sum instead of softmax")}
          {!run.example && button("mute", `mute head ${h}`, "its output becomes zero")}
          <label class="labelled">
            temperature{" "}
            <input
              type="range"
              min="-3"
              max="3"
              step="0.5"
              value={Math.log2(heat)}
              aria-valuetext={String(heat)}
              onInput={(event) =>
                set(
                  `t:${Number((2 ** Number(event.currentTarget.value)).toFixed(3))}`,
                  Number(event.currentTarget.value) !== 0,
                )
              }
            />{" "}
            <output>{short(heat, 3)}</output>
          </label>
          {keyWords && (
            <label class="labelled">
              hide{" "}
              <select
                value={hidden ?? ""}
                onChange={(event) =>
                  set(`hide:${event.currentTarget.value}`, event.currentTarget.value !== "")
                }
              >
                <option value="">no word</option>
                {wordChoices(keyWords).map(([at, name]) => (
                  <option value={String(at)} selected={String(at) === hidden}>
                    {visible(name)}
                  </option>
                ))}
              </select>
            </label>
          )}
          {edits.size > 0 && (
            <button type="button" class="button" onClick={() => go({ edits: null }, false)}>
              undo
            </button>
          )}
        </div>
      )}
      {open && found.error && (
        <p class="failure" role="alert">
          {found.error.message}
        </p>
      )}
      {open && edits.size > 0 && found.value && !found.error && (
        <Compared
          found={found.value}
          keyWords={keyWords}
          query={query}
          pieces={state.pieces === 1}
          theme={theme}
        />
      )}
    </section>
  );
}

/** The last piece of each word, and the word. @type {(keys: TokenRange) => [number, string][]} */
const wordChoices = ({ words, names, tokens }) =>
  words && names
    ? names.map((name, word) => [words.lastIndexOf(word), name])
    : tokens.map((name, at) => [at, name]);

/**
 * The weights of the query before and after the change, word by word.
 * @param {{found: any, keyWords: TokenRange | null, query: string, pieces: boolean, theme: Theme}}
 *   props
 */
function Compared({ found, keyWords, query, pieces, theme }) {
  const rows = rowsOf(found, pieces ? null : keyWords);
  const most = Math.max(...rows.map((row) => Math.abs(row.after - row.before)));
  const low = Math.min(0, ...rows.map((row) => row.after));
  const high = Math.max(1, ...rows.map((row) => row.after));
  const x = (/** @type {number} */ w) => (100 * (w - low)) / (high - low);
  /**
   * The bar of a weight; before the change it is hollow.
   * @type {(w: number, y: number, hollow: boolean) => any}
   */
  const bar = (w, y, hollow) => {
    if (!Number.isFinite(w)) return null;
    const colour = css(weightColour(Math.abs(w), theme));
    return (
      <rect
        x={Math.min(x(0), x(w))}
        y={y}
        height="4"
        width={Math.max(0.3, Math.abs(x(w) - x(0)))}
        fill={hollow ? "none" : colour}
        stroke={hollow ? colour : "none"}
        stroke-width="1.5"
        vector-effect="non-scaling-stroke"
      />
    );
  };
  return (
    <div class="compared">
      <table class="ledger">
        <caption class="hidden">
          weights of {visible(query)} before (hollow bars) and after (filled)
        </caption>
        <thead>
          <tr>
            <th scope="col">key</th>
            <th scope="col">before ▭</th>
            <th scope="col" class="now">
              after ▬
            </th>
            <th scope="col" class="share">
              <span class="ends">
                <span>{percent(low)}</span>
                <span>{percent(high)}</span>
              </span>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr class={most > 1e-9 && Math.abs(row.after - row.before) === most ? "chosen" : ""}>
              <td>
                {visible(row.name)}
                {most > 1e-9 && Math.abs(row.after - row.before) === most ? (
                  <>
                    {" "}
                    <small class="soft">changed most</small>
                  </>
                ) : (
                  ""
                )}
              </td>
              <td class="was" title={full(row.before)}>
                {percent(row.before)}
              </td>
              <td class="now" title={full(row.after)}>
                {percent(row.after)}
              </td>
              <td class="share">
                <svg
                  class="meter"
                  viewBox="0 0 100 10"
                  preserveAspectRatio="none"
                  aria-hidden="true"
                >
                  {bar(row.before, 0.5, true)}
                  {bar(row.after, 5.5, false)}
                </svg>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <OutputChange output={found.output} reaches={found.reaches} />
    </div>
  );
}

/**
 * How the change moves the probabilities of the next word.
 * @param {{output: any, reaches: boolean}} props
 */
function OutputChange({ output, reaches }) {
  if (!output)
    return (
      <p class="soft">
        {reaches
          ? ""
          : "Only this attention is changed: there is no model behind it that would go on."}
      </p>
    );
  const little = output.kl < 1e-3;
  const said = (
    <p>
      {little ? "The model’s output hardly changes" : "The model’s output changes"}:{" "}
      <span class="figures">
        <Term name="KL divergence" /> {short(output.kl, 2)}
      </span>
      . {little ? "Other heads and layers make up for it." : ""}
    </p>
  );
  if (output.kind === "gpt")
    return (
      <div>
        <h3>the likeliest next tokens</h3>
        {said}
        <table class="pairs">
          <thead>
            <tr>
              <th scope="col">before</th>
              <th scope="col" />
              <th scope="col">after</th>
              <th scope="col" />
            </tr>
          </thead>
          <tbody>
            {output.before.map((/** @type {any} */ one, /** @type {number} */ at) => (
              <tr>
                <td>{visible(one.text)}</td>
                <td title={full(one.p)}>{percent(one.p)}</td>
                <td class="token">{visible(output.after[at].text)}</td>
                <td title={full(output.after[at].p)}>{percent(output.after[at].p)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    );
  return (
    <div>
      <h3>what it wrote, and with which probability</h3>
      {said}
      <table class="pairs">
        <thead>
          <tr>
            <th scope="col">word</th>
            <th scope="col">before</th>
            <th scope="col">after</th>
            <th scope="col">instead</th>
          </tr>
        </thead>
        <tbody>
          {output.words.map((/** @type {any} */ word) => (
            <tr>
              <td>{visible(word.name)}</td>
              <td title={full(word.before)}>{percent(word.before)}</td>
              <td title={full(word.after)} class={word.after < word.before / 2 ? "now" : ""}>
                {percent(word.after)}
              </td>
              <td>{word.instead === null ? "" : visible(word.instead)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/**
 * Return the weights before and after, of words if their pieces are known, otherwise of keys.
 * @param {any} found
 * @param {TokenRange | null} keyWords
 */
function rowsOf(found, keyWords) {
  const { words, names } = keyWords ?? {};
  /** @type {{name: string, before: number, after: number}[]} */
  const keys = found.trace.tokens.map((/** @type {string} */ name, /** @type {number} */ at) => ({
    ...{ name, before: found.before[at], after: found.after[at] },
  }));
  if (!words || !names || words.length !== keys.length) return keys;
  return names.map((name, word) => {
    const own = keys.filter((_, at) => words[at] === word);
    return {
      name,
      before: own.reduce((sum, key) => sum + key.before, 0),
      after: own.reduce((sum, key) => sum + key.after, 0),
    };
  });
}
