/** Heads: a small map of every head, two heads compared on one query, and the habits of all. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAnswer, useAnswers } from "../../answers.js";
import { Answered, allAnswers, headName, layerOf } from "../../parts/answered.jsx";
import { Asked, canAsk, useAskKeys } from "../../parts/asked.jsx";
import { cellColour, css, weightColour } from "../../parts/colour.js";
import { paint } from "../../parts/matrix.jsx";
import { Term } from "../../parts/term.jsx";
import { WhatIf } from "../../parts/what_if.jsx";
import { WordPicker } from "../../parts/word_picker.jsx";
import { tokenRange, wordsOrPieces } from "../../parts/words.js";
import { number, perRun, shared, text } from "../../state/fields.js";
import { askedKeys, chosenKey } from "./asking.jsx";
import { Fans } from "./fans.jsx";
import { Habits, LookedAt } from "./habits.jsx";
import { Readings } from "./readings.jsx";

export const title = "Heads";
export const shows = "two heads compared from one word, and all heads";
export const needs = "map";
export const begins = "start";
export const splitsWords = true;
export const fields = {
  ...shared("layer", "head"),
  /** The two heads that are compared. */
  layerA: perRun(number("la")),
  headA: perRun(number("a")),
  layerB: perRun(number("lb")),
  headB: perRun(number("b")),
  ...shared("query", "key", "kind", "asked", "than"),
  /** Of which of the two it is asked. */
  side: perRun(text("side", "a")),
  /** The run of the same sentence with a word inserted, in the lesson that compares both. */
  control: perRun(text("control")),
};
export { Heads as view };

/** @typedef {{l: number, h: number}} HeadPlace */

/**
 * Another kind of attention starts afresh, because its heads are others.
 * @param {ScreenProps} props
 */
const Heads = (props) => <HeadsOfKind key={props.attention.kind} {...props} />;

/**
 * All heads of the attentions that are of the same kind as the chosen one.
 * @param {ScreenProps} props
 */
function HeadsOfKind(props) {
  const { run, attention, state, answers } = props;
  const alike = useMemo(
    () => run.attentions.filter((one) => one.kind === attention.kind && one.has?.map !== false),
    [run, attention.kind],
  );
  const by = state.pieces === 1 ? undefined : "words";
  const requests = alike.map(({ l }) => ({ path: `runs/${run.run}/heads`, query: { l, by } }));
  const layers = useAnswers(answers, requests);
  const i = Math.min(state.query ?? attention.n_q >> 1, attention.n_q - 1);
  const compared = useAnswer(
    answers,
    attention.has?.alignment ? `runs/${run.run}/perspectives` : null,
    {
      l: attention.l,
      i,
    },
  );
  const tokens = useAnswer(answers, `runs/${run.run}/tokens`, tokenRange(attention, "q", i));
  const keys = useAnswer(answers, `runs/${run.run}/tokens`, tokenRange(attention, "k", 0));
  const loaded = layers.filter((one) => one.value);
  return (
    <>
      <h2>Two perspectives</h2>
      <p class="lede">
        What two <Term name="head">heads</Term> attend to from the same word. The wider a ribbon,
        the larger the share.
      </p>
      {loaded.length < layers.length && layers.some((one) => one.slow) && (
        <p class="soft" role="status">
          {loaded.length} of {layers.length} layers loaded…
        </p>
      )}
      <Answered
        answer={allAnswers(
          tokens,
          ...(loaded.length ? loaded : layers),
          ...(compared.error || !attention.has?.alignment ? [] : [compared]),
        )}
      >
        {([words, ...rest]) => (
          <Comparison
            {...props}
            alike={alike}
            layers={rest.filter((/** @type {any} */ one) => one.maps)}
            words={words}
            keyWords={keys.value}
            i={i}
            compared={compared.value}
          />
        )}
      </Answered>
    </>
  );
}

/**
 * Two heads in full, A and B, and all heads as small maps to choose them from.
 * @param {ScreenProps & {alike: Attention[], layers: HeadsAnswer[], words: TokenRange, keyWords:
 *   TokenRange | null, i: number, compared: PerspectivesAnswer | null}} props
 */
function Comparison({
  run,
  attention,
  state,
  go,
  answers,
  alike,
  layers,
  words,
  keyWords,
  transport,
  theme,
  root,
  i,
  compared,
}) {
  /** @type {(l: number | null, h: number | null) => HeadPlace | null} */
  const placeOf = (l, h) =>
    l !== null && h !== null && alike.some((one) => one.l === l && one.heads.includes(h))
      ? { l, h }
      : null;

  // A and B: as chosen by hand, else the pair that the API suggests, else any two.
  const pair = compared?.pair?.map((at) => compared.heads[at]);
  const A = placeOf(state.heads.layerA, state.heads.headA) ??
    pair?.[0] ?? { l: attention.l, h: state.head };
  const last = alike[alike.length - 1];
  const another = last.heads.find((h) => last.l !== A.l || h !== A.h) ?? last.heads[0];
  const B = placeOf(state.heads.layerB, state.heads.headB) ??
    pair?.[1] ?? { l: last.l, h: another };
  const picked = wordsOrPieces(words, state.pieces === 1);
  // A recording of summaries has no scores, and of each query the largest weights alone.
  // a file that lacks the steps of a head may hold all of its weights
  const summary = attention.has?.trace === false && run.keep === "summaries";
  const byHand = state.heads.layerA !== null || state.heads.layerB !== null;

  // A click chooses A and B in turn.
  const [turn, setTurn] = useState("a");
  /** @type {(l: number, h: number) => void} */
  const choose = (l, h) => {
    const chosenA = turn === "a" ? { l, h } : A;
    const chosenB = turn === "a" ? B : { l, h };
    const heads = {
      layerA: chosenA.l,
      headA: chosenA.h,
      layerB: chosenB.l,
      headB: chosenB.h,
    };
    go(turn === "a" ? { heads, layer: l, head: h } : { heads });
    setTurn(turn === "a" ? "b" : "a");
  };
  /** @type {(l: number, h: number) => string} */
  const mark = (l, h) => (l === A.l && h === A.h ? "a" : l === B.l && h === B.h ? "b" : "");
  const wide = Math.max(...alike.map((one) => one.heads.length));

  // In a long text a pixel of a small map covers several weights.
  const pooled = !layers.every(
    (one) => one.names || (one.rows === attention.n_q && one.columns === attention.n_k),
  );
  /** @type {(l: number) => Attention} */
  const attentionOf = (l) => alike.find((one) => one.l === l) ?? attention;
  /** @type {(l: number, h: number) => string} */
  const nameOf = (l, h) => headName(attentionOf(l), h);

  // What can be asked of a head, and the panel that answers.
  const able = canAsk(run, transport);
  useAskKeys(root, state, go, able);
  const asking = able ? { state, go } : null;
  const asked = state.heads.side === "b" ? B : A;
  /** @param {{l: number, h: number, i: number}} place */
  const goToHead = ({ l, h, i: query }) => {
    const other = alike.some((one) => one.l === l) ? B : { l: null, h: null };
    const heads = { layerA: l, headA: h, layerB: other.l, headB: other.h, side: "a" };
    go({ layer: l, head: h, query, key: null, than: null, heads });
  };
  /** @param {(import("./asking.jsx").KeyChoice[] | undefined)[]} choices  of A and of B */
  const panel = (choices) => {
    const keys = choices[asked === B ? 1 : 0];
    return (
      <Asked
        run={run}
        attention={attentionOf(asked.l)}
        h={asked.h}
        i={i}
        query={picked.range.tokens[picked.at(i) - picked.range.start] ?? ""}
        keys={askedKeys(keys, state)}
        at={keys?.length ? chosenKey(keys, state) : 0}
        state={state}
        go={go}
        goToHead={goToHead}
        answers={answers}
        theme={theme}
      />
    );
  };
  const shared = { run, answers, A, B, i, nameOf, layers, theme, asking, panel };
  return (
    <>
      <div class="picker" style={{ margin: "14px 0 16px" }}>
        <h3>query</h3>
        <WordPicker
          words={picked.range}
          at={picked.at(i)}
          choose={(/** @type {number} */ at) => go({ query: picked.query(at) })}
          label="the query"
        />
      </div>
      {compared && state.pieces !== 1 ? (
        <Fans
          compared={compared}
          A={A}
          B={B}
          nameOf={nameOf}
          byHand={byHand}
          go={go}
          theme={theme}
          keyWords={keyWords?.words ?? null}
          asking={asking}
          panel={panel}
        />
      ) : (
        <Readings
          {...shared}
          words={
            !pooled && attention.kind !== "cross" && attention.n_q === attention.n_k ? words : null
          }
        />
      )}
      <WhatIf
        run={run}
        attention={attentionOf(A.l)}
        h={A.h}
        i={i}
        keyWords={attention.n_k <= 512 ? keyWords : null}
        state={state}
        go={go}
        answers={answers}
        transport={transport}
        theme={theme}
        query={picked.range.tokens[picked.at(i)] ?? ""}
      />
      <h2 style={{ margin: "38px 0 0" }}>All heads</h2>
      <p class="lede">
        Each square is one head’s attention: rows are queries, columns are keys; the stronger the
        colour, the larger the weight. Choose two heads to compare them.
      </p>
      <div class="row" style={{ margin: "18px 0 12px" }}>
        <span class="soft">click to choose</span>
        <span class="segments">
          {["a", "b"].map((which) => (
            <button type="button" aria-pressed={turn === which} onClick={() => setTurn(which)}>
              head {which.toUpperCase()}
            </button>
          ))}
        </span>
        <Scale theme={theme} />
        {pooled && (
          <span class="soft">
            pooled to {layers[0].rows} × {layers[0].columns}
            {layers.every((one) => one.exact) || summary ? "" : "; sampled, not exact"}
          </span>
        )}
        {summary && (
          <span class="soft">
            from the largest weights of each query: this recording kept summaries
          </span>
        )}
      </div>
      <div class="aisle">
        <div
          class="minis"
          style={{ gridTemplateColumns: `max-content repeat(${wide}, minmax(24px, 84px))` }}
        >
          <span />
          {Array.from({ length: wide }, (_, h) => (
            <span class="nr">{h}</span>
          ))}
          {layers.map((layer) => (
            <>
              <span class="layer">
                {attentionOf(layer.l).title ?? `layer ${layerOf(attentionOf(layer.l))}`}
              </span>
              {layer.maps.map((map) => (
                <Mini
                  key={`${layer.l}/${map.h}`}
                  map={map}
                  mark={mark(layer.l, map.h)}
                  name={nameOf(layer.l, map.h)}
                  masks={attention.mask !== "everyone"}
                  theme={theme}
                  choose={() => choose(layer.l, map.h)}
                />
              ))}
              {Array.from({ length: wide - layer.maps.length }, () => (
                <span />
              ))}
            </>
          ))}
        </div>
      </div>
      {run.kind === "recording" && (
        <LookedAt
          run={run}
          answers={answers}
          attention={attention}
          h={state.head}
          i={i}
          name={nameOf(attention.l, state.head)}
        />
      )}
      <Habits layers={layers} mark={mark} choose={choose} nameOf={nameOf} />
    </>
  );
}

/** The colours of the small maps, from 0 to 1. @param {{theme: Theme}} props */
function Scale({ theme }) {
  return (
    <span class="legend">
      <span class="end">0</span>
      <svg width="120" height="10" viewBox="0 0 32 1" preserveAspectRatio="none" aria-hidden="true">
        {Array.from({ length: 32 }, (_, at) => (
          <rect
            x={at}
            width="1.05"
            height="1"
            shape-rendering="crispEdges"
            fill={css(weightColour((at / 31) ** 2, theme))}
          />
        ))}
      </svg>
      <span class="end">1</span>
      <span>one scale for all heads</span>
    </span>
  );
}

/**
 * The small map of a head.
 * @param {{map: HeadMap, mark: string, name: string, masks: boolean, theme: Theme, choose: () =>
 *   void}} props
 */
function Mini({ map, mark, name, masks, theme, choose }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => paint(canvas.current, map.share, cellColour(theme, masks)), [map, theme]);
  return (
    <button
      type="button"
      class={`mini ${mark} ${masks ? "masked" : ""}`}
      aria-label={`${name}${mark ? `, chosen as ${mark.toUpperCase()}` : ""}`}
      title={name}
      onClick={choose}
    >
      <canvas ref={canvas} />
      {mark && <span class={`mark ${mark}`}>{mark.toUpperCase()}</span>}
    </button>
  );
}
