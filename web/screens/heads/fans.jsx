/**
 * Two heads side by side: the sentence, and a ribbon from the query to every word it attends to.
 */
import { css, weightColour } from "../../parts/colour.js";
import { argmax, percent } from "../../parts/numbers.js";
import { SpecialTitle, specialMeaning } from "../../parts/special.jsx";
import { Term } from "../../parts/term.jsx";
import { clipped, visible } from "../../parts/text.js";
import { AskRow, HEAD_SIDES, chosenKey } from "./asking.jsx";

/**
 * @typedef {{l: number, h: number}} HeadPlace
 * @typedef {import("./asking.jsx").KeyChoice} KeyChoice
 */

/** Where each habit looks. @type {Record<string, string>} */
const HABITS = {
  previous: "the word before",
  next: "the word after",
  itself: "the word itself",
  first: "the first word",
  sink: "one and the same word",
};

/**
 * What two heads attend to from one word, and in one sentence how they differ.
 * @param {{compared: PerspectivesAnswer, A: HeadPlace, B: HeadPlace, nameOf: (l: number, h: number)
 *   => string, byHand: boolean, go: Go, theme: Theme, keyWords: number[] | null, asking:
 *   import("./asking.jsx").Asking | null, panel: (choices: (KeyChoice[] | undefined)[]) => any}}
 *   props  `keyWords` is the word of each key
 */
export function Fans({ compared, A, B, nameOf, byHand, go, theme, keyWords, asking, panel }) {
  const { names, word, heads, pair } = compared;
  const whole = [A, B].map(({ l, h }) => heads.find((one) => one.l === l && one.h === h));
  const kept = largest(whole, compared);
  const columns = kept.map((at) => compared.columns[at]);
  const shown = whole.map((one) => one && { ...one, weights: kept.map((at) => one.weights[at]) });
  const own = sameWords(compared.columns, names) && kept.includes(word) ? kept.indexOf(word) : null;
  const left = compared.columns.length - kept.length;
  const query = <b class="q">{visible(names[word])}</b>;
  const tops = shown.map((one) => one && argmax(one.weights));
  const by = heads.filter((one) => one.habit !== null).length;
  // Where fewer than two others remain, all are compared.
  const areLeftOut = heads.length - by > 1;
  // The words that are drawn, as keys to choose.
  const choices = shown.map((one) =>
    one?.weights.map((weight, place) => ({
      name: columns[place],
      weight,
      members: [...(keyWords ?? []).keys()].filter((j) => keyWords?.[j] === kept[place]),
    })),
  );
  return (
    <>
      <div class="readings">
        {shown.map(
          (one, at) =>
            one && (
              <figure class="reading card">
                <h3>
                  <span class={`mark ${"ab"[at]}`}>{"AB"[at]}</span>
                  {nameOf(one.l, one.h)}
                </h3>
                <Fan
                  weights={one.weights}
                  words={columns}
                  from={own}
                  query={names[word]}
                  theme={theme}
                  chosen={asking ? chosenKey(choices[at] ?? [], asking.state) : null}
                  choose={(place) =>
                    asking?.go({ key: choices[at]?.[place].members.at(-1) ?? null }, false)
                  }
                />
                {asking && (
                  <AskRow
                    {...asking}
                    side={HEAD_SIDES[at]}
                    name={nameOf(one.l, one.h)}
                    keys={choices[at] ?? []}
                  />
                )}
                <figcaption class="soft">
                  {one.habit ? (
                    <>
                      <b>By position:</b> over all words of the text, {percent(one.share)} of this
                      head’s weight goes to {HABITS[one.habit]}. Such a <Term name="habit" /> says
                      little about this sentence.
                    </>
                  ) : (
                    <>
                      Over all words of the text, no one place gets more than {percent(one.share)}{" "}
                      of this head’s weight: it does not go by position alone.
                    </>
                  )}
                </figcaption>
              </figure>
            ),
        )}
      </div>
      <p class="said">
        {shown[0] && shown[1] && tops[0] !== tops[1] ? (
          <>
            From {query}, A attends most to <b class="k">{visible(columns[tops[0] ?? 0])}</b> (
            {percent(shown[0].weights[tops[0] ?? 0])}), B to{" "}
            <b class="k">{visible(columns[tops[1] ?? 0])}</b> (
            {percent(shown[1].weights[tops[1] ?? 0])}).
          </>
        ) : (
          shown[0] &&
          shown[1] && (
            <>
              Both attend most to <b class="k">{visible(columns[tops[0] ?? 0])}</b>:{" "}
              {percent(shown[0].weights[tops[0] ?? 0])} in A,{" "}
              {percent(shown[1].weights[tops[1] ?? 0])} in B.
            </>
          )
        )}{" "}
        {!byHand && pair ? (
          <>
            Of {heads.length} heads, these two differ most from each other in what they give to
            other words
            {by > 0 &&
              (areLeftOut
                ? `; ${by} that attend by position are left out`
                : `; ${by} attend by position, so that too few others remain to leave them out`)}
            .
          </>
        ) : (
          ""
        )}{" "}
        {byHand && pair && heads.length > 2 && (
          <button
            type="button"
            class="button small"
            onClick={() => go({ heads: { layerA: null, headA: null, layerB: null, headB: null } })}
          >
            the two that differ most
          </button>
        )}
      </p>
      <p class="soft" style={{ fontSize: "13.5px" }}>
        What is measured are perspectives, not a decision: where heads look, not what the model
        concludes.{left > 0 ? ` ${left} words with smaller weights are not drawn.` : ""}
      </p>
      {panel(choices)}
    </>
  );
}

const MOST = 20; // words of a fan

/**
 * Return the words that are shown, by index: all of a short text, of a long one the query and the
 * largest weights.
 * @param {(PerspectivesAnswer["heads"][0] | undefined)[]} heads
 * @param {PerspectivesAnswer} compared
 */
function largest(heads, { columns, word }) {
  const all = [...columns.keys()];
  if (columns.length <= MOST) return all;
  const most = (/** @type {number} */ at) => Math.max(...heads.map((one) => one?.weights[at] ?? 0));
  const best = new Set([word, ...[...all].sort((a, b) => most(b) - most(a)).slice(0, MOST - 6)]);
  return all.filter((at) => best.has(at));
}

/** Return whether two lists hold the same words. @type {(a: string[], b: string[]) => boolean} */
const sameWords = (a, b) => a.length === b.length && a.every((word, at) => word === b[at]);

const LINE = 26; // pixels from one word to the next

/**
 * The words below each other, the query on the left, and a ribbon to every word.
 * @param {{weights: number[], words: string[], from: number | null, query: string, theme: Theme,
 *   chosen: number | null, choose: (at: number) => void}} props  `chosen` is null where no key can
 *   be chosen; the pointer chooses here, and the keyboard in the list below
 */
function Fan({ weights, words, from, query, theme, chosen, choose }) {
  const high = words.length * LINE + 6;
  const y = (/** @type {number} */ at) => at * LINE + LINE / 2 + 3;
  const start = from === null ? high / 2 : y(from);
  const top = argmax(weights);
  const shares = words.map((word, at) => `${visible(word)} ${percent(weights[at])}`);
  return (
    <svg
      class="fan"
      viewBox={`0 0 420 ${high}`}
      role="img"
      aria-label={`${visible(query)} attends to ${shares.join(", ")}`}
    >
      <text
        x="104"
        y={start + 5}
        text-anchor="end"
        font-size="15"
        style={{ fontFamily: "var(--serif)", fontWeight: 600, fill: "var(--query)" }}
      >
        {clipped(query, 14)}
      </text>
      <g fill="none">
        {weights.map(
          (w, at) =>
            w >= 0.005 && (
              <path
                d={`M112 ${start}C170 ${start} 170 ${y(at)} 232 ${y(at)}`}
                data-weight={w}
                stroke={css(weightColour(w, theme))}
                stroke-width={Math.max(0.8, 20 * w)}
              />
            ),
        )}
      </g>
      {words.map((word, at) => (
        <>
          <text
            x="240"
            y={y(at) + 5}
            font-size="15"
            class={chosen === null ? "" : `key ${at === chosen ? "chosen" : ""}`}
            onClick={() => choose(at)}
            style={{
              fontFamily: "var(--serif)",
              fontWeight: at === top ? 600 : 400,
              fill: weights[at] >= 0.05 && !specialMeaning(word) ? "var(--ink)" : "var(--soft)",
            }}
          >
            <SpecialTitle of={word} />
            {clipped(word, 16)}
          </text>
          <text
            x="416"
            y={y(at) + 4}
            text-anchor="end"
            font-size="12"
            style={{
              fontFamily: "var(--figures)",
              fill: weights[at] >= 0.05 ? "var(--ink)" : "var(--soft)",
            }}
          >
            {percent(weights[at])}
          </text>
        </>
      ))}
    </svg>
  );
}
