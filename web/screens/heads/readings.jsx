/** One query in two heads of a long text or in pieces: its largest weights, as tables. */
import { useAnswers } from "../../answers.js";
import { Answered, allAnswers } from "../../parts/answered.jsx";
import { css, weightColour } from "../../parts/colour.js";
import {
  argmax,
  count,
  full,
  percent,
  sum,
  traceWeights,
  weightScale,
} from "../../parts/numbers.js";
import { clipped, visible } from "../../parts/text.js";
import { AskRow, HEAD_SIDES } from "./asking.jsx";

/**
 * One query in both heads. Short texts read its weights from the small maps; long ones request its
 * trace.
 * @param {{run: Run, answers: import("../../answers.js").Answers, A:
 *   import("./index.jsx").HeadPlace, B: import("./index.jsx").HeadPlace, i: number, nameOf: (l:
 *   number, h: number) => string, layers: HeadsAnswer[], words: TokenRange | null, theme: Theme,
 *   asking: import("./asking.jsx").Asking | null, panel: (choices:
 *   import("./asking.jsx").KeyChoice[][]) => any}} props
 */
export function Readings({ run, answers, A, B, i, nameOf, layers, words, theme, asking, panel }) {
  const places = [A, B];
  // otherwise the largest weights alone are known
  const whole = run.attentions[A.l]?.has?.trace !== false;
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
        const choices = traces.map((trace, at) =>
          trace.keys.map((key, place) => ({
            name: trace.tokens[place],
            weight: rows[at][place],
            members: [key],
          })),
        );
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
                  {asking && (
                    <AskRow
                      {...asking}
                      side={HEAD_SIDES[at]}
                      name={nameOf(places[at].l, places[at].h)}
                      keys={choices[at]}
                    />
                  )}
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
            {panel(choices)}
          </>
        );
      }}
    </Answered>
  );
}

const LINES = 14; // rows of the table; the others are one row together

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
              <span>{percent(top)}</span>
            </span>
          </th>
        </tr>
      </thead>
      <tbody>
        {order.map((at) => (
          <tr>
            <td style={{ fontFamily: "var(--serif)" }}>{clipped(trace.tokens[at], 24)}</td>
            <td title={full(weights[at])}>{percent(weights[at])}</td>
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
            <td title={full(rest)}>{percent(rest)}</td>
            <td />
          </tr>
        )}
      </tbody>
    </table>
  );
}
