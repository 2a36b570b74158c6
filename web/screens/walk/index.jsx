/**
 * Walk: from tokens to context, one step at a time, for one query of one head. Every number can be
 * pointed at.
 */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered, KINDS, allAnswers, headName } from "../../parts/answered.jsx";
import { Ask, Asked, canAsk, useAskKeys } from "../../parts/asked.jsx";
import { FORMULAS } from "../../parts/formula.jsx";
import { useKeys } from "../../parts/hooks.js";
import { argmax, short, sum, toNumber } from "../../parts/numbers.js";
import { visible } from "../../parts/text.js";
import { useLive } from "../../parts/live.js";
import { WhatIf } from "../../parts/what_if.jsx";
import { WordPicker } from "../../parts/word_picker.jsx";
import { joinKeys, tokenRange, wordsOrPieces } from "../../parts/words.js";
import { shared, text } from "../../state/fields.js";
import { AfterHead } from "./after_head.jsx";
import { explain } from "./explanations.jsx";
import { Ledger } from "./ledger.jsx";
import { RowTimesColumn } from "./row_times_column.jsx";
import { Context, Embedding, Projections, Sum, Tokens } from "./stages.jsx";

export const title = "Walk";
export const shows = "one query of one head, step by step";
export const needs = "trace";
export const begins = "start";
export const splitsWords = true;
export const fields = {
  ...shared("layer", "head", "query", "key"),
  step: text("step", "softmax"),
  ...shared("kind", "asked", "than"),
};
export { Walk as view };

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
  after: ["after the head", AfterHead],
};

/** The steps at which one asks for a head's words, and not for a score. */
const BEHIND = ["sum", "context", "after"];

/**
 * Return the names of the steps that a trace has. A mask that hides nothing is a step too, which
 * shows that it does.
 * @param {Trace} trace
 * @param {boolean} example
 * @param {boolean} after  whether what follows the head is known
 */
const stepsOf = (trace, example, after) => {
  const names = new Set(trace.steps.map((step) => step.name));
  return Object.keys(STEPS).filter((name) => {
    if (name === "tokens") return !example;
    if (name === "embedding") return trace.stream || example;
    if (name === "after") return after;
    if (name === "sum" || name === "context") return trace.value && trace.context;
    return !["scaled", "capped", "biased"].includes(name) || names.has(name);
  });
};

/**
 * Every step of one query is one answer of the API, so that steps change at once.
 * @param {ScreenProps} props
 */
function Walk(props) {
  const { run, attention, state, answers } = props;
  const { layer: l, head: h } = state;
  const i = Math.min(state.query ?? attention.n_q >> 1, attention.n_q - 1);
  const queries = useAnswer(answers, `runs/${run.run}/tokens`, tokenRange(attention, "q", i));
  const keys = useAnswer(answers, `runs/${run.run}/tokens`, tokenRange(attention, "k", 0));
  const trace = useAnswer(answers, `runs/${run.run}/trace`, { l, h, i });
  const answer = allAnswers(queries, keys, trace);
  // Numbers may be dragged to where scores cannot be divided by their sum, and on: the cells stay.
  const last = useRef(answer);
  if (answer.value) last.current = answer;
  const stays = run.example && answer.error && last.current.value;
  return (
    <>
      {stays && (
        <p class="failure" role="alert">
          {answer.error?.message}
        </p>
      )}
      <Answered answer={stays ? last.current : answer}>
        {([words, keyWords, found]) => (
          <Steps {...props} words={words} keyWords={keyWords} pieceTrace={found} i={i} />
        )}
      </Answered>
    </>
  );
}

/**
 * The rail of steps, the stage of one of them, and its explanation.
 * @param {ScreenProps & {words: TokenRange, keyWords: TokenRange, pieceTrace: Trace, i: number}}
 *   props
 */
function Steps({
  run,
  words,
  keyWords,
  pieceTrace,
  attention,
  state,
  go,
  theme,
  root,
  transport,
  answers,
  i,
}) {
  const pieces = state.pieces === 1;
  const picked = wordsOrPieces(words, pieces);
  const trace = useMemo(
    () => (pieces ? pieceTrace : named(joinKeys(pieceTrace, keyWords), picked, i)),
    [pieceTrace, keyWords, pieces],
  );

  // The step: as chosen, or the first that this attention has.
  const steps = stepsOf(trace, run.example !== null, attention.has?.after === true);
  const at = Math.max(0, steps.indexOf(state.walk.step));
  const step = steps[at];
  const row = useMemo(() => traceRow(trace, pieceTrace), [trace]);

  // The key: as chosen, or the one with the largest weight.
  const chosen =
    state.key === null ? -1 : row.members.findIndex((group) => group.includes(Number(state.key)));
  const j = chosen >= 0 ? chosen : argmax(row.weights);
  const [m, point] = useState(/** @type {any} */ (null));
  useEffect(() => point(null), [trace, step]);
  const live = useLive({ run, go, transport, answers });

  const place = picked.at(i);
  const goToStep = (/** @type {string} */ name) => go({ walk: { step: name } });
  useKeys(root, ({ key }) => {
    const side = key === "ArrowLeft" ? -1 : key === "ArrowRight" ? 1 : 0;
    const down = key === "ArrowUp" ? -1 : key === "ArrowDown" ? 1 : 0;
    if (side && steps[at + side]) goToStep(steps[at + side]);
    else if (down && place + down >= 0 && place + down < picked.range.n)
      go({ query: picked.query(place + down) });
    else return false;
    return true;
  });

  const Stage = STEPS[step][1];
  // What can be asked of the chosen score, and of the head.
  const able = canAsk(run, transport);
  useAskKeys(root, state, go, able);
  /** @param {"why" | "follows"} question */
  const asking = (question) => ({
    open: state.asked === question,
    toggle: () => go({ asked: state.asked === question ? null : question }),
  });
  const asksWhy = able && Stage === Ledger;
  const asksWords = able && [...BEHIND, "softmax"].includes(step);

  // What the stage and its explanation have in common.
  const { usual, labels } = stepLabels(trace, attention.d_k);
  /** @param {string} name */
  const label = (name) =>
    name === "embedding" && run.example ? "inputs" : (labels[name] ?? STEPS[name][0]);
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
    words: picked.range,
    place,
    run,
    answers,
    cells: { run, scene: attention.l, chosen: i, go, transport, live },
    pick: (key) => go({ key: row.keys[key] }, false),
    why: asksWhy ? asking("why") : null,
  };
  const { title, prose, readout } = explain(shared);
  return (
    <>
      <div class="picker">
        <h3>query</h3>
        <WordPicker
          words={picked.range}
          at={place}
          choose={(at) => go({ query: picked.query(at) })}
          label="the query"
        />
      </div>
      {picked.joined && row.split && (
        <p class="soft pieces-note">
          {piecesOf(words, place).includes(" ") ? (
            <>
              The model reads <b>{visible(picked.range.tokens[place])}</b> in pieces,{" "}
              {piecesOf(words, place)}; the walk follows the last one.{" "}
            </>
          ) : (
            ""
          )}
          A word in several pieces has the sum of their weights, and the scores of the strongest.
        </p>
      )}
      <nav class="rail" aria-label="steps">
        <button
          type="button"
          class="button"
          aria-label="previous step"
          disabled={at === 0}
          onClick={() => goToStep(steps[at - 1])}
        >
          ◀
        </button>
        <ol>
          {steps.map((name, nr) => (
            <li class={nr < at ? "past" : ""}>
              <button
                type="button"
                aria-current={nr === at ? "step" : undefined}
                onClick={() => goToStep(name)}
              >
                <span class="nr">{nr + 1}</span> <span class="label">{label(name)}</span>
              </button>
            </li>
          ))}
        </ol>
        <select
          class="step-list"
          aria-label="step"
          value={step}
          onChange={(event) => goToStep(event.currentTarget.value)}
        >
          {steps.map((name, nr) => (
            <option value={name} selected={nr === at}>
              {nr + 1} of {steps.length}: {label(name)}
            </option>
          ))}
        </select>
        <button
          type="button"
          class="button"
          aria-label="next step"
          disabled={at === steps.length - 1}
          onClick={() => goToStep(steps[at + 1])}
        >
          ▶
        </button>
      </nav>
      <WhatIf
        run={run}
        attention={attention}
        h={state.head}
        i={i}
        keyWords={keyWords}
        state={state}
        go={go}
        answers={answers}
        transport={transport}
        theme={theme}
        query={trace.token}
      />
      <div class="walk" data-step={step} data-at={`${trace.l}/${trace.h}/${trace.i}`}>
        <section aria-label={label(step)}>
          <Stage {...shared} />
        </section>
        <aside class="aside card">
          <h2>{title}</h2>
          {formula || <p class="figures">{row.formulas[step]}</p>}
          {step === "qkv" && (
            <RowTimesColumn {...shared} h={state.head} isOnline={transport.canRun} />
          )}
          {prose}
          <output class="readout" aria-live="polite">
            {readout}
          </output>
          {(asksWhy || asksWords) && (
            <p class="row">
              {asksWhy && (
                <Ask question="why" {...asking("why")}>
                  why this score?
                </Ask>
              )}
              {asksWords && (
                <Ask question="follows" {...asking("follows")}>
                  what follows?
                </Ask>
              )}
            </p>
          )}
          <p class="soft" style={{ fontSize: "13px" }}>
            {KINDS[attention.kind] ?? attention.name}, {headName(attention, state.head)}:{" "}
            <span class="figures">{trace.formula}</span>
          </p>
        </aside>
      </div>
      <Asked
        run={run}
        attention={attention}
        h={state.head}
        i={i}
        query={trace.token}
        keys={row.tokens.map((name, at) => ({
          name,
          j: row.keys[at],
          isHidden: row.steps.mask[at] === -Infinity,
        }))}
        at={j}
        state={state}
        go={go}
        goToHead={(place) =>
          go({ layer: place.l, head: place.h, query: place.i, key: null, than: null })
        }
        answers={answers}
        theme={theme}
      />
    </>
  );
}

/**
 * The pieces of a word, as the model reads them.
 * @type {(words: TokenRange, place: number) => string}
 */
const piecesOf = (words, place) =>
  words.tokens
    .filter((_, at) => words.words?.[at] === place)
    .map(visible)
    .join(" ");

/**
 * Return a trace whose query has the name of its word.
 * @param {Trace} trace
 * @param {import("../../parts/words.js").Shown} picked
 * @param {number} i
 */
const named = (trace, picked, i) => ({
  ...trace,
  token: picked.range.tokens[picked.at(i)] ?? trace.token,
});

/**
 * Return the steps of a trace as numbers, by name.
 * @param {Trace & {members?: number[][]}} trace
 * @param {Trace} pieces  the trace before pieces were joined
 * @returns {TraceRow}
 */
function traceRow(trace, pieces) {
  const numbers = (/** @type {Trace} */ one) =>
    Object.fromEntries(one.steps.map((step) => [step.name, step.numbers.map(toNumber)]));
  /** @param {Record<string, number[]>} steps */
  const beforeSoftmax = (steps) =>
    steps.masked ?? steps.biased ?? steps.capped ?? steps.scaled ?? steps.scores;
  const steps = numbers(trace);
  const all = beforeSoftmax(numbers(pieces));
  const members = trace.members ?? trace.keys.map((_, at) => [at]);
  const top = Math.max(...all.filter(Number.isFinite));
  return {
    keys: trace.keys,
    tokens: trace.tokens,
    steps: { ...steps, mask: beforeSoftmax(steps), softmax: steps.weights },
    masks: Boolean(steps.masked),
    weights: steps.weights,
    powers: members.map((group) => sum(group.map((at) => Math.exp(all[at] - top)))),
    members: members.map((group) => group.map((at) => pieces.keys[at])),
    split: members.some((group) => group.length > 1),
    formulas: Object.fromEntries(
      trace.steps.map((step) => [step.name === "weights" ? "softmax" : step.name, step.formula]),
    ),
  };
}

/**
 * Return which steps are the usual ones, and the labels of those that may not be, where the
 * attention is not the usual softmax(q·k / √d); `d` is the length of a key.
 * @param {Trace} trace
 * @param {number} d
 * @returns {{usual: Record<string, boolean>, labels: Record<string, string>}}
 */
function stepLabels(trace, d) {
  const normaliser =
    trace.steps.find((step) => step.name === "weights")?.formula.match(/^\w+/)?.[0] ?? "softmax";
  const usual = {
    scores: trace.score === "q·k",
    scaled: Math.abs(trace.scale * Math.sqrt(d) - 1) < 1e-9,
    softmax: normaliser === "softmax",
  };
  const labels = {
    scores: trace.score.length <= 8 ? trace.score : "score",
    scaled: usual.scaled ? "÷ √d" : `× ${short(trace.scale, 3)}`,
    softmax: normaliser.replace("_", " "),
  };
  return { usual, labels };
}
