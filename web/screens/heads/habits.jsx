/** What all heads do: where each puts its weight, and which tokens of a recording get it. */
import { useMemo, useState } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered } from "../../parts/answered.jsx";
import { count, full, percent, short } from "../../parts/numbers.js";
import { Term } from "../../parts/term.jsx";
import { visible } from "../../parts/text.js";

/**
 * The share of weight that each head gives to each habit, as a table that can be sorted.
 * @param {{layers: HeadsAnswer[], mark: (l: number, h: number) => string, choose: (l: number, h:
 *   number) => void, nameOf: (l: number, h: number) => string}} props
 */
export function Habits({ layers, mark, choose, nameOf }) {
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
  const { habit_keys: habitKeys, distances, clear } = layers[0];
  const habits = Object.keys(habitKeys).filter((habit) =>
    heads.some((head) => typeof head[habit] === "number"),
  );
  // An exported file of an earlier version has no distances.
  const measured = Object.keys(distances ?? {}).filter((name) =>
    heads.some((head) => typeof head[name] === "number"),
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
        The <Term name="habit">habits</Term> of these {count(heads.length)} heads: where each puts
        its weight, on a <Term name="sink" /> for instance, and its <Term name="spread" />. A share
        of {percent(clear)} or more is marked; the largest names the head’s kind.
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
              {measured.map((name) => sortable(name, name, distances[name]))}
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
                {measured.map((name) => (
                  <td title={full(head[name])}>{short(head[name], 3)}</td>
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

/**
 * The text of a recording; the more a token is attended to by all queries, the stronger its
 * background.
 * @param {{run: Run, answers: import("../../answers.js").Answers, attention: Attention, h: number,
 *   i: number, name: string}} props
 */
export function LookedAt({ run, answers, attention, h, i, name }) {
  const start = attention.n_k <= 512 ? 0 : Math.max(0, Math.min(i - 256, attention.n_k - 512));
  const query = { l: attention.l, h, start, stop: Math.min(attention.n_k, start + 512) };
  const found = useAnswer(answers, `runs/${run.run}/received`, query);
  if (found.error) return null;
  // The square root lets small shares be seen.
  /** @type {(value: any, at: number) => number} */
  const shade = ({ received, most }, at) => Math.round(62 * Math.sqrt(received[at] / (most || 1)));
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
                    background: `color-mix(in srgb, var(--bar) ${shade(value, at)}%, transparent)`,
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
