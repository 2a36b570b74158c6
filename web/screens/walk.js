/** Walk: from tokens to context, one step at a time, for one query of one head. Every number can be pointed at. */
import { useAnswer } from "../answers.js";
import { allAnswers, Answered, headName, KINDS } from "../parts/answered.js";
import { FORMULAS } from "../parts/formula.js";
import { argmax, toNumber } from "../parts/numbers.js";
import { tokenRange } from "../parts/token_range.js";
import { useKeys } from "../parts/use_keys.js";
import { WordPicker } from "../parts/word_picker.js";
import { html, useEffect, useMemo, useState } from "../preact.js";
import { explain } from "./explanations.js";
import { Context, Embedding, Ledger, Projections, Sum, Tokens } from "./stages.js";
import { stepLabels } from "./step_labels.js";

/**
 * The label and the stage of each step.
 * @type {Record<string, [string, (props: StepProps) => any]>}
 */
const STEPS = {
  tokens: ["tokens", Tokens],
  embedding: ["embedding", Embedding],
  qkv: ["Q K V", Projections],
  scores: ["q·k", Ledger],
  scaled: ["÷ √d", Ledger],
  capped: ["cap", Ledger],
  biased: ["bias", Ledger],
  mask: ["mask", Ledger],
  softmax: ["softmax", Ledger],
  sum: ["Σ", Sum],
  context: ["context", Context],
};

/**
 * Return the names of the steps that a trace has. A mask that hides nothing is a step too, which shows that it does.
 * @param {Trace} trace
 */
const stepsOf = (trace) => {
  const names = new Set(trace.steps.map((step) => step.name));
  return Object.keys(STEPS).filter((name) => {
    if (name === "embedding") return trace.stream;
    if (name === "sum" || name === "context") return trace.value && trace.context;
    return !["scaled", "capped", "biased"].includes(name) || names.has(name);
  });
};

/** @param {ScreenProps} props */
export function Walk({ run, attention, state, go, answers, theme, root }) {
  const { l, h } = state;
  const i = Math.min(state.i ?? Math.floor(attention.n_q / 2), attention.n_q - 1);
  const tokens = useAnswer(answers, `runs/${run.run}/tokens`, tokenRange(attention, "q", i));
  const trace = useAnswer(answers, `runs/${run.run}/trace`, { l, h, i });
  return html`<${Answered} answer=${allAnswers(tokens, trace)}>${([words, found]) => html`
    <${Steps} words=${words} trace=${found} ...${{ attention, state, go, theme, root, i }} />`}<//>`;
}

/** @param {Pick<ScreenProps, "attention" | "state" | "go" | "theme" | "root"> & {words: TokenRange, trace: Trace, i: number}} props */
function Steps({ words, trace, attention, state, go, theme, root, i }) {
  const steps = stepsOf(trace);
  const at = Math.max(0, steps.indexOf(state.step));
  const step = steps[at];
  const row = useMemo(() => traceRow(trace), [trace]);
  const chosen = state.j === null ? -1 : row.keys.indexOf(state.j);
  const j = chosen >= 0 ? chosen : argmax(row.weights);
  const [m, point] = useState(/** @type {any} */ (null));
  useEffect(() => point(null), [trace, step]);

  useKeys(root, ({ key }) => {
    const side = key === "ArrowLeft" ? -1 : key === "ArrowRight" ? 1 : 0;
    const down = key === "ArrowUp" ? -1 : key === "ArrowDown" ? 1 : 0;
    if (side && steps[at + side]) go({ step: steps[at + side] });
    else if (down && i + down >= 0 && i + down < attention.n_q) go({ i: i + down });
    else return false;
    return true;
  });

  const Stage = STEPS[step][1];
  const { usual, labels } = stepLabels(trace, attention.d_k);
  /** @param {string} name */
  const label = (name) => labels[name] ?? STEPS[name][0];
  const formula = usual[step] !== false && FORMULAS[step]?.(attention.d_k);
  /** @type {StepProps} */
  const shared = {
    usual,
    labels,
    trace: /** @type {FullTrace} */ (trace),
    row,
    attention,
    step,
    i,
    j,
    m,
    point,
    theme,
    words,
    pick: (key) => go({ j: row.keys[key] }, false),
  };
  const { title, prose, readout } = explain(shared);
  return html`
    <div class="picker">
      <h3>query</h3>
      <${WordPicker} words=${words} at=${i} choose=${(i) => go({ i })} label="the query" />
    </div>
    <nav class="rail" aria-label="steps">
      <button type="button" class="button" aria-label="previous step" disabled=${at === 0} onClick=${() => go({ step: steps[at - 1] })}>◀</button>
      <ol>${steps.map(
        (name, place) => html`<li class=${place < at ? "past" : ""}>
        <button type="button" aria-current=${place === at ? "step" : undefined} onClick=${() => go({ step: name })}>
          <span class="nr">${place + 1}</span> <span class="label">${label(name)}</span></button></li>`,
      )}</ol>
      <button type="button" class="button" aria-label="next step" disabled=${at === steps.length - 1} onClick=${() => go({ step: steps[at + 1] })}>▶</button>
    </nav>
    <div class="walk" data-step=${step} data-at=${`${trace.l}/${trace.h}/${trace.i}`}>
      <section aria-label=${label(step)}><${Stage} ...${shared} /></section>
      <aside class="aside card">
        <h2>${title}</h2>
        ${formula || html`<p class="figures">${row.formulas[step]}</p>`}
        ${prose}
        <output class="readout" aria-live="polite">${readout}</output>
        <p class="soft" style=${{ fontSize: "13px" }}>${KINDS[attention.kind] ?? attention.name}, ${headName(attention, state.h)}: <span class="figures">${trace.formula}</span></p>
      </aside>
    </div>`;
}

/**
 * Return the steps of a trace as numbers, by name.
 * @param {Trace} trace
 * @returns {TraceRow}
 */
function traceRow(trace) {
  const steps = Object.fromEntries(trace.steps.map((step) => [step.name, step.numbers.map(toNumber)]));
  const before = steps.biased ?? steps.capped ?? steps.scaled ?? steps.scores;
  return {
    keys: trace.keys,
    tokens: trace.tokens,
    steps: { ...steps, mask: steps.masked ?? before, softmax: steps.weights },
    masks: Boolean(steps.masked),
    weights: steps.weights,
    formulas: Object.fromEntries(
      trace.steps.map((step) => [step.name === "weights" ? "softmax" : step.name, step.formula]),
    ),
  };
}
