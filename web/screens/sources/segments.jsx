/** The segments of a context: in the text, shaded by their scores, and ranked by them. */
import { useState } from "preact/hooks";
import { count, full, percent } from "../../parts/numbers.js";
import { asSentence, clipped, visibleLines } from "../../parts/text.js";

/** Return a class for segments of several words. @param {SourcesAnswer} value */
const isLong = ({ by }) => (by === "words" || by === "pieces" ? "" : "long");

/**
 * The colour behind a segment; in dark colours it is weaker, so that the text on it stays readable.
 * @type {(score: number, most: number, theme: Theme) => string}
 */
const background = (score, most, theme) => {
  const strength = Math.sqrt(Math.min(1, Math.abs(score) / (most || 1)));
  const share = Math.round((theme === "dark" ? 40 : 62) * strength);
  return `color-mix(in srgb, var(--${score < 0 ? "query" : "bar"}) ${share}%, transparent)`;
};

/**
 * @typedef {{asked: AnswerOfRun, value: SourcesAnswer, go: Go, lit: number | null, point: (row:
 *   SourceRow) => void, hidden: {start: number, stop: number} | null, theme: Theme}} Shared
 */

/**
 * The visible tokens of the context, by segments; the stronger a segment's score, the stronger its
 * background.
 * @param {Shared} props
 */
export function Context({ value, lit, point, hidden, theme }) {
  /** @type {{start: number, stop: number, score: number, text: string}[]} */
  const segments = [];
  value.tokens.forEach((token, at) => {
    const [start, score] = value.segments[at];
    const last = segments.at(-1);
    if (last && last.start === start)
      Object.assign(last, { text: last.text + token, stop: value.start + at + 1 });
    else segments.push({ start, stop: value.start + at + 1, score, text: token });
  });
  const strongest = value.rows.find((row) => !row.own);
  return (
    <p
      class={`from-text ${isLong(value)}`}
      tabindex={0}
      role="group"
      aria-label="the context; the ranked list beside it has the same numbers"
    >
      {value.start > 0 && <span class="soft">… </span>}
      {segments.map((one) => {
        const isHidden = hidden && one.start >= hidden.start && one.start < hidden.stop;
        const space = one.text.match(/^\s*/)?.[0] ?? "";
        const isLit = one.start === (lit ?? strongest?.start);
        const kinds = `${isLit ? "lit" : ""} ${isHidden ? "away" : ""}`;
        return (
          <>
            {space.includes("\n") ? space : space && " "}
            <span
              key={one.start}
              class={kinds}
              title={`${full(one.score)}`}
              style={{ background: background(one.score, value.most, theme) }}
              onClick={() => point(/** @type {any} */ (one))}
            >
              {visibleLines(one.text.slice(space.length))}
            </span>
          </>
        );
      })}
      {value.stop < value.n && <span class="soft"> …</span>}
    </p>
  );
}

const RANKED = 12; // rows that are shown at first

/**
 * The segments with the largest scores; each can be lit or hidden.
 * @param {Shared & {first: number, end: number}} props
 */
export function Ranked({ asked, value, go, lit, point, hidden, end, first }) {
  const [all, setAll] = useState(false);
  const rows = all ? value.rows : value.rows.slice(0, RANKED);
  const most = Math.max(...value.rows.map((row) => Math.abs(row.share)), 1e-30);
  const rest = value.rows.length - rows.length + (all ? 0 : value.more);
  const answer = clipped(value.answer.join("").trim(), 28);
  return (
    <section class={`card ranked ${isLong(value)}`} aria-label="ranked segments">
      <h3>
        The sources of <b class="q">{answer}</b>
      </h3>
      <table class="ledger">
        <caption class="hidden">segments of the context, the strongest first</caption>
        <thead>
          <tr>
            <th scope="col">part</th>
            <th scope="col">share</th>
            <th scope="col" class="share">
              <span class="hidden">as a bar</span>
            </th>
            {asked.hide === null && (
              <th scope="col">
                <span class="hidden">hide</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => {
            const away = hidden?.start === row.start && hidden.stop === row.stop && !row.own;
            const name = clipped(
              row.own ? "the answer itself" : row.text.trim().replace(/\s+/g, " "),
              value.by === "words" || value.by === "pieces" ? 40 : 84,
            );
            return (
              <tr key={`${row.start}`} class={row.start === lit ? "chosen" : ""}>
                <td>
                  {row.own ? (
                    <span class="soft own-part">{name}</span>
                  ) : (
                    <button
                      type="button"
                      class="pick"
                      title={`tokens ${row.start} to ${row.stop - 1}`}
                      onClick={() => point(row)}
                    >
                      {name}
                    </button>
                  )}
                </td>
                <td class="now" title={`${full(row.share)}; score ${full(row.score)}`}>
                  {row.share < 0 ? `−${percent(-row.share)}` : percent(row.share)}
                </td>
                <td class="share">
                  <svg
                    class="meter"
                    viewBox="0 0 100 10"
                    preserveAspectRatio="none"
                    aria-hidden="true"
                  >
                    <rect
                      y="1"
                      height="8"
                      width={Math.max(0.4, (100 * Math.abs(row.share)) / most)}
                      fill={row.share < 0 ? "var(--query)" : "var(--bar)"}
                    />
                  </svg>
                </td>
                {asked.hide === null && (
                  <td>
                    {!row.own && (
                      <button
                        type="button"
                        class="button small"
                        aria-pressed={away}
                        aria-label={away ? `show ${name} again` : `hide this one: ${name}`}
                        onClick={() =>
                          go(
                            {
                              sources: {
                                first,
                                end,
                                hidden: away ? null : `${row.start}-${row.stop}`,
                              },
                            },
                            false,
                          )
                        }
                      >
                        {away ? "show" : "hide"}
                      </button>
                    )}
                  </td>
                )}
              </tr>
            );
          })}
        </tbody>
      </table>
      {rest > 0 && (
        <p>
          <button type="button" class="button small" onClick={() => setAll(true)} disabled={all}>
            {count(Math.min(rest, value.rows.length - RANKED))} more
          </button>
        </p>
      )}
      {all && value.more > 0 && <p class="soft">{count(value.more)} more have smaller shares.</p>}
      <p class="soft from-note">
        {value.rows.some((row) => row.share < 0) ? "Orange counts against the answer. " : ""}
        {asked.hide === null
          ? "Hide one: the model runs again without it."
          : asSentence(asked.hide)}
      </p>
    </section>
  );
}
