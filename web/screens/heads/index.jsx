/** Heads: a small map of every head, two heads compared on one query, and the habits of all. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAnswer, useAnswers } from "../../answers.js";
import { Answered, allAnswers, headName, layerOf } from "../../parts/answered.jsx";
import { cellColour, css, weightColour } from "../../parts/colour.js";
import { paint } from "../../parts/matrix.jsx";
import {
  argmax,
  count,
  full,
  percent,
  short,
  sum,
  traceWeights,
  weightScale,
} from "../../parts/numbers.js";
import { clipped, visible } from "../../parts/text.js";
import { WhatIf } from "../../parts/what_if.jsx";
import { WordPicker } from "../../parts/word_picker.jsx";
import { tokenRange, wordsOrPieces } from "../../parts/words.js";
import { Fans } from "./fans.jsx";
import { number, perRun, shared } from "../../state/fields.js";

export const title = "Heads";
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
  ...shared("query", "kind"),
};
export { Heads as view };

/** @typedef {{l: number, h: number}} HeadPlace */

/** @param {ScreenProps} props */
export const Heads = (props) => <HeadsOfKind key={props.attention.kind} {...props} />;

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
        What two heads attend to from the same word. The wider a ribbon, the larger the share.
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

/** @param {ScreenProps & {alike: Attention[], layers: HeadsAnswer[], words: TokenRange, keyWords: TokenRange | null, i: number, compared: PerspectivesAnswer | null}} props */
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
  i,
  compared,
}) {
  /** @type {(l: number | null, h: number | null) => HeadPlace | null} */
  const placeOf = (l, h) =>
    l !== null && h !== null && alike.some((one) => one.l === l && one.heads.includes(h))
      ? { l, h }
      : null;
  const pair = compared?.pair?.map((at) => compared.heads[at]);
  const A = placeOf(state.heads.layerA, state.heads.headA) ??
    pair?.[0] ?? { l: attention.l, h: state.head };
  const last = alike[alike.length - 1];
  const another = last.heads.find((h) => last.l !== A.l || h !== A.h) ?? last.heads[0];
  const B = placeOf(state.heads.layerB, state.heads.headB) ??
    pair?.[1] ?? { l: last.l, h: another };
  const picked = wordsOrPieces(words, state.pieces === 1);
  const summary = attention.has?.trace === false;
  const byHand = state.heads.layerA !== null || state.heads.layerB !== null;
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
  const pooled = !layers.every(
    (one) => one.names || (one.rows === attention.n_q && one.columns === attention.n_k),
  );
  /** @type {(l: number) => Attention} */
  const attentionOf = (l) => alike.find((one) => one.l === l) ?? attention;
  /** @type {(l: number, h: number) => string} */
  const nameOf = (l, h) => headName(attentionOf(l), h);
  const shared = { run, answers, A, B, i, nameOf, layers, theme };
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

/** @param {{theme: Theme}} props */
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

/** @param {{map: HeadMap, mark: string, name: string, masks: boolean, theme: Theme, choose: () => void}} props */
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

/**
 * One query in both heads. Short texts read its weights from the small maps; long ones request its trace.
 * @param {{run: Run, answers: import("../../answers.js").Answers, A: HeadPlace, B: HeadPlace, i: number,
 *   nameOf: (l: number, h: number) => string, layers: HeadsAnswer[], words: TokenRange | null, theme: Theme}} props
 */
function Readings({ run, answers, A, B, i, nameOf, layers, words, theme }) {
  const places = [A, B];
  const whole = run.attentions[A.l]?.has?.trace !== false; // otherwise the largest weights alone are known
  const fromMaps = places.map(({ l, h }) => {
    const row = layers.find((layer) => layer.l === l)?.maps.find((map) => map.h === h)?.share[i];
    if (!words || !row || !whole) return null;
    const steps = [{ name: "weights", numbers: row }];
    return {
      token: words.tokens[i],
      tokens: words.tokens,
      keys: [...row.keys()],
      n_k: row.length,
      steps,
    };
  });
  const requests = places.map(({ l, h }, at) => ({
    path: fromMaps[at] ? null : `runs/${run.run}/${whole ? "trace" : "top"}`,
    query: { l, h, i },
  }));
  const fetched = useAnswers(answers, requests);
  const [a, b] = fromMaps.map((value, at) =>
    value ? { value, error: null, slow: false } : fetched[at],
  );
  return (
    <Answered answer={allAnswers(a, b)}>
      {(/** @type {Trace[]} */ traces) => {
        const rows = traces.map(traceWeights);
        const best = rows.map(argmax);
        const tops = traces.map((trace, at) => trace.tokens[best[at]]);
        const same = traces[0].keys[best[0]] === traces[1].keys[best[1]];
        const top = Math.max(...rows.map(weightScale));
        return (
          <>
            <div class="readings">
              {traces.map((trace, at) => (
                <div class="reading card">
                  <h3>
                    <span class={`mark ${"ab"[at]}`}>{"AB"[at]}</span>
                    {nameOf(places[at].l, places[at].h)}
                  </h3>
                  <Reading trace={trace} weights={rows[at]} top={top} theme={theme} />
                </div>
              ))}
            </div>
            <p class="said">
              {same ? (
                <>
                  Both attend most to <b class="k">{visible(tops[0])}</b>:{" "}
                  {percent(rows[0][best[0]])} in A, {percent(rows[1][best[1]])} in B.
                </>
              ) : (
                <>
                  From <b class="q">{visible(traces[0].token)}</b>, A attends most to{" "}
                  <b class="k">{visible(tops[0])}</b> ({percent(rows[0][best[0]])}), B to{" "}
                  <b class="k">{visible(tops[1])}</b> ({percent(rows[1][best[1]])}).
                </>
              )}
            </p>
          </>
        );
      }}
    </Answered>
  );
}

/**
 * The text of a recording; the more a token is attended to by all queries, the stronger its background.
 * @param {{run: Run, answers: import("../../answers.js").Answers, attention: Attention, h: number, i: number, name: string}} props
 */
function LookedAt({ run, answers, attention, h, i, name }) {
  const start = attention.n_k <= 512 ? 0 : Math.max(0, Math.min(i - 256, attention.n_k - 512));
  const query = { l: attention.l, h, start, stop: Math.min(attention.n_k, start + 512) };
  const found = useAnswer(answers, `runs/${run.run}/received`, query);
  if (found.error) return null;
  return (
    <>
      <h2 style={{ margin: "38px 0 0" }}>The text, as it is looked at</h2>
      <p class="lede">
        The weight that each token gets from all queries of {name}, from none to{" "}
        {short(found.value?.most ?? 0, 3)}.
      </p>
      <Answered answer={found}>
        {(/** @type {any} */ value) => (
          <p class="looked-at">
            {value.tokens.map((/** @type {string} */ token, /** @type {number} */ at) => (
              <>
                <span
                  title={full(value.received[at])}
                  style={{
                    background: `color-mix(in srgb, var(--bar) ${Math.round(62 * Math.sqrt(value.received[at] / (value.most || 1)))}%, transparent)`,
                  }}
                >
                  {visible(token).replace(/^·/, "")}
                </span>
                {value.tokens[at + 1]?.startsWith("·") ? "" : " "}
              </>
            ))}
          </p>
        )}
      </Answered>
    </>
  );
}

const LINES = 14;

/**
 * The largest weights of one query, in the order of the text.
 * @param {{trace: Trace, weights: number[], top: number, theme: Theme}} props
 */
function Reading({ trace, weights, top, theme }) {
  const order = weights
    .map((_, at) => at)
    .sort((a, b) => weights[b] - weights[a])
    .slice(0, LINES)
    .sort((a, b) => a - b);
  const rest = sum(weights.filter((_, at) => !order.includes(at))) + (trace.rest?.weight ?? 0);
  return (
    <table class="ledger" style={{ marginTop: "10px" }}>
      <caption class="hidden">the largest weights of {visible(trace.token)}</caption>
      <thead>
        <tr>
          <th scope="col">key</th>
          <th scope="col">weight</th>
          <th scope="col" class="share">
            <span class="ends">
              <span>0</span>
              <span>{short(top, 3)}</span>
            </span>
          </th>
        </tr>
      </thead>
      <tbody>
        {order.map((at) => (
          <tr>
            <td style={{ fontFamily: "var(--serif)" }}>{clipped(trace.tokens[at], 24)}</td>
            <td title={full(weights[at])}>{short(weights[at])}</td>
            <td class="share">
              <svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
                <rect
                  y="1"
                  height="8"
                  width={Math.max((100 * weights[at]) / top, 0.3)}
                  fill={css(weightColour(weights[at], theme))}
                />
              </svg>
            </td>
          </tr>
        ))}
        {weights.length > LINES && (
          <tr>
            <td class="soft">{count(trace.n_k - LINES)} others</td>
            <td title={full(rest)}>{short(rest)}</td>
            <td />
          </tr>
        )}
      </tbody>
    </table>
  );
}

/**
 * The share of weight that each head gives to each habit, as a table that can be sorted.
 * @param {{layers: HeadsAnswer[], mark: (l: number, h: number) => string, choose: (l: number, h: number) => void,
 *   nameOf: (l: number, h: number) => string}} props
 */
function Habits({ layers, mark, choose, nameOf }) {
  const heads = useMemo(
    () =>
      layers.flatMap((layer) =>
        (layer.habits ?? [])
          .map((one) => /** @type {Record<string, any>} */ ({ l: layer.l, ...one }))
          .sort((x, y) => x.h - y.h),
      ),
    [layers],
  );
  const [by, setBy] = useState("layer");
  if (!heads.length)
    return (
      <p class="soft" style={{ marginTop: "30px" }}>
        Habits are measured on short texts only.
      </p>
    );
  const { habit_keys: habitKeys, clear } = layers[0];
  const habits = Object.keys(habitKeys).filter((habit) =>
    heads.some((head) => typeof head[habit] === "number"),
  );
  const sorted =
    by === "layer"
      ? heads
      : [...heads].sort((x, y) =>
          by === "kind" ? (x.kind < y.kind ? -1 : 1) : (y[by] ?? -1) - (x[by] ?? -1),
        );
  /** @type {(name: string, label: string, title: string, kind?: string) => any} */
  const sortable = (name, label, title, kind = "") => (
    <th
      scope="col"
      class={kind}
      aria-sort={
        by === name ? (name === "layer" || name === "kind" ? "ascending" : "descending") : undefined
      }
    >
      <button type="button" title={title} onClick={() => setBy(name)}>
        {label}
      </button>
    </th>
  );
  return (
    <>
      <h2 style={{ margin: "38px 0 0" }}>Habits</h2>
      <p class="lede">
        Where each of these {count(heads.length)} heads puts its weight. A share of {percent(clear)}{" "}
        or more is marked; the largest names the head’s kind.
      </p>
      <div
        class="scroller"
        tabindex={0}
        role="region"
        aria-label="habits of all heads"
        style={{ marginTop: "14px" }}
      >
        <table class="habits">
          <thead>
            <tr>
              {sortable("layer", "head", "by layer", "name")}
              {sortable(
                "kind",
                "kind",
                `the habit with the largest share, if it is ${percent(clear)} or more`,
                "name",
              )}
              {habits.map((habit) => sortable(habit, habit, `the share on ${habitKeys[habit]}`))}
              {sortable("spread", "spread", "the effective number of keys: exp(entropy)")}
            </tr>
          </thead>
          <tbody>
            {sorted.map((head) => (
              <tr key={`${head.l}/${head.h}`} class={mark(head.l, head.h)}>
                <td class="name">
                  <button type="button" onClick={() => choose(head.l, head.h)}>
                    {nameOf(head.l, head.h)}
                  </button>
                </td>
                <td class="name">{head.kind}</td>
                {habits.map((habit) => (
                  <td class={head[habit] >= clear ? "much" : ""} title={full(head[habit])}>
                    {percent(head[habit])}
                  </td>
                ))}
                <td title={full(head.spread)}>{short(head.spread, 3)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
