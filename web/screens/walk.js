/** Walk: from tokens to context, one step at a time, for one query of one head. Every number can be pointed at. */
import { useAnswer } from "../answers.js";
import { FORMULAS } from "../parts/formula.js";
import { useKeys } from "../parts/keys.js";
import { argmax, number } from "../parts/numbers.js";
import { all, Asked, headName, KINDS } from "../parts/shell.js";
import { stretch } from "../parts/tokens.js";
import { Words } from "../parts/words.js";
import { html, useEffect, useMemo, useState } from "../ui.js";
import { definition } from "./definition.js";
import { Context, Embedding, Ledger, Projections, Sum, Tokens } from "./stages.js";
import { told } from "./told.js";

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

/** The steps that this attention takes. A mask that hides nothing is still a step: one sees that it does. */
export const taken = (trace) => {
  const names = new Set(trace.steps.map((step) => step.name));
  return Object.keys(STEPS).filter((name) => {
    if (name === "embedding") return trace.stream;
    if (name === "sum" || name === "context") return trace.value && trace.context;
    return !["scaled", "capped", "biased"].includes(name) || names.has(name);
  });
};

export function Walk({ run, attention, state, go, answers, theme, root }) {
  const { l, h } = state;
  const i = Math.min(state.i ?? Math.floor(attention.n_q / 2), attention.n_q - 1);
  const tokens = useAnswer(answers, `runs/${run.run}/tokens`, stretch(attention, "q", i));
  const trace = useAnswer(answers, `runs/${run.run}/trace`, { l, h, i });
  return html`<${Asked} of=${all(tokens, trace)}>${([words, found]) => html`
    <${Stepped} words=${words} trace=${found} ...${{ attention, state, go, theme, root, i }} />`}<//>`;
}

function Stepped({ words, trace, attention, state, go, theme, root, i }) {
  const steps = taken(trace);
  const at = Math.max(0, steps.indexOf(state.step));
  const step = steps[at];
  const row = useMemo(() => read(trace), [trace]);
  const here = row.keys.indexOf(state.j);
  const j = here >= 0 ? here : argmax(row.weights);
  const [m, point] = useState(null);
  useEffect(() => point(null), [trace, step]);

  useKeys(root, ({ key }) => {
    const [side, up] = [{ ArrowLeft: -1, ArrowRight: 1 }[key], { ArrowUp: -1, ArrowDown: 1 }[key]];
    if (side && steps[at + side]) go({ step: steps[at + side] });
    else if (up && i + up >= 0 && i + up < attention.n_q) go({ i: i + up });
    else return false;
    return true;
  });

  const Stage = STEPS[step][1];
  const { usual, labels } = definition(trace, attention.d_k);
  const label = (name) => labels[name] ?? STEPS[name][0];
  const formula = usual[step] !== false && FORMULAS[step]?.(attention.d_k);
  const shared = { usual, labels, trace, row, attention, step, i, j, m, point, theme, words, pick: (place) => go({ j: row.keys[place] }, false) };
  const { title, prose, readout } = told(shared);
  return html`
    <div class="picker">
      <h3>query</h3>
      <${Words} words=${words} at=${i} choose=${(i) => go({ i })} label="the query: which word looks" />
    </div>
    <nav class="rail" aria-label="steps">
      <button type="button" class="button" aria-label="the step before" disabled=${at === 0} onClick=${() => go({ step: steps[at - 1] })}>◀</button>
      <ol>${steps.map((name, place) => html`<li class=${place < at ? "past" : ""}>
        <button type="button" aria-current=${place === at ? "step" : undefined} onClick=${() => go({ step: name })}>
          <span class="nr">${place + 1}</span> <span class="label">${label(name)}</span></button></li>`)}</ol>
      <button type="button" class="button" aria-label="the next step" disabled=${at === steps.length - 1} onClick=${() => go({ step: steps[at + 1] })}>▶</button>
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

/** The trace with its numbers as numbers, and each step's by name. */
function read(trace) {
  const steps = Object.fromEntries(trace.steps.map((step) => [step.name, step.numbers.map(number)]));
  const before = steps.biased ?? steps.capped ?? steps.scaled ?? steps.scores;
  return {
    keys: trace.keys,
    tokens: trace.tokens,
    steps: { ...steps, mask: steps.masked ?? before, softmax: steps.weights },
    masks: Boolean(steps.masked),
    weights: steps.weights,
    formulas: Object.fromEntries(trace.steps.map((step) => [step.name === "weights" ? "softmax" : step.name, step.formula])),
  };
}

