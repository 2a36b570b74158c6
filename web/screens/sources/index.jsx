/**
 * Sources: choose words of the answer, and see which parts of the context they come from; hide one
 * and run again.
 */
import { useRef, useState } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered } from "../../parts/answered.jsx";
import { count, full, percent } from "../../parts/numbers.js";
import { clipped, visibleLines } from "../../parts/text.js";
import { AnswerPicker } from "./answer.jsx";
import { HiddenSegment } from "./hidden.jsx";
import { Minimap } from "./minimap.jsx";
import { number, perRun, text } from "../../state/fields.js";

export const title = "Sources";
export const needs = null;
export const subject = "model";
/** A worked example has no text whose sources could be found. @type {ScreenModule["isOffered"]} */
export const isOffered = (run) => run?.kind !== "example";
export const fields = {
  /** The tokens of the answer whose sources are shown. */
  first: perRun(number("first")),
  end: perRun(number("end")),
  /** How sources are found, and how the context is cut into segments. */
  method: text("via"),
  cut: text("cut"),
  /** The part of the context that the minimap shows. */
  low: perRun(number("low")),
  high: perRun(number("high")),
  /** The segment that is hidden, as start-stop. */
  hidden: perRun(text("hide")),
};
export { Sources as view };

const WINDOW = 400; // tokens of a long text that are shown

const SLOW = 20_000; // tokens from which on a rollout takes long

/** What each `how` asks. @type {Record<string, string>} */
const HOWS = {
  weights: "Where do the heads look while they write it?",
  carried: "What do the heads carry over: weight times length of the vector?",
  rollout: "Where do the heads look, followed through all layers?",
  gradient: "Where would a small change of the weight change the probability?",
  hidden: "How much less likely is it if the model cannot see this part?",
};

/** What the ways to cut a context are called. @type {Record<string, string>} */
const CUTS = {
  words: "words",
  sentences: "sentences",
  paragraphs: "paragraphs",
  parts: "equal parts",
  pieces: "pieces of words",
};

/** A run without an answer says why it has no sources. @param {ScreenProps} props */
function Sources(props) {
  const { run, state, answers } = props;
  const at =
    state.sources.first === null ? undefined : Math.floor(state.sources.first / 256) * 256 + 128;
  const found = useAnswer(answers, `runs/${run.run}/answer`, { at });
  return (
    <>
      <h2>Where an answer comes from</h2>
      <p class="lede">
        Choose words of the answer: the parts of the text that they come from light up. Hide a part,
        and see what the model writes without it.
      </p>
      <Answered answer={found}>
        {(/** @type {AnswerOfRun} */ value) =>
          value.why === null ? (
            <Asked asked={value} {...props} />
          ) : (
            <p class="failure" role="status">
              {sentence(value.why)}
            </p>
          )
        }
      </Answered>
    </>
  );
}

/** Return a class for segments of several words. @param {SourcesAnswer} value */
const isLong = ({ by }) => (by === "words" || by === "pieces" ? "" : "long");

/** Return a reason of the API as a sentence. @param {string} why */
const sentence = (why) => `${why[0].toUpperCase()}${why.slice(1)}.`;

/**
 * The answer and its context side by side, and the segments in the order of their scores.
 * @param {ScreenProps & {asked: AnswerOfRun}} props
 */
function Asked({ asked: described, ...props }) {
  const { run, go, answers, root, theme, transport } = props;
  const chosen = props.state.sources;
  // A saved file has no model that could run without a segment.
  const asked = transport.send
    ? described
    : { ...described, hide: described.hide ?? "a saved file cannot run the model" };
  const [first, end] =
    chosen.first !== null && chosen.end !== null ? [chosen.first, chosen.end] : asked.span;

  // The first method that this run allows, unless one is chosen; `lacks` says why a chosen one
  // fails.
  const how =
    chosen.method ?? Object.keys(asked.hows).find((one) => asked.hows[one] === null) ?? "weights";
  const lacks = asked.hows[how] ?? null;
  const view = { low: chosen.low ?? undefined, high: chosen.high ?? undefined };
  const [centre, setCentre] = useState(/** @type {number | null} */ (null));
  const query = {
    first,
    end,
    how,
    by: chosen.cut ?? "auto",
    window: WINDOW,
    centre: centre ?? undefined,
    ...view,
  };
  const found = useAnswer(answers, lacks === null ? `runs/${run.run}/sources` : null, query);

  // The segment that is pointed at in the list is lit in the text.
  const [lit, setLit] = useState(/** @type {number | null} */ (null));
  const value = /** @type {SourcesAnswer | null} */ (
    lacks === null && !found.error ? found.value : null
  );
  const hidden = hiddenSegment(chosen);
  // hidden when the screen was opened: the page stays at its top
  const opened = useRef(chosen.hidden);
  /** @type {(span: number[]) => void} */
  const choose = ([from, to]) => {
    setLit(null);
    setCentre(null);
    go({ sources: { first: from, end: to, hidden: null, low: null, high: null } }, false);
  };
  /** @param {SourceRow} row */
  const point = (row) => {
    setLit(row.start);
    if (value && (row.start < value.start || row.stop > value.stop))
      setCentre(Math.floor((row.start + row.stop) / 2));
  };
  const shared = { asked, go, lit, point, hidden, theme };
  return (
    <>
      <div class="row from-how">
        <span class="segments" role="group" aria-label="how sources are found">
          {Object.keys(asked.hows).map((one) => (
            <button
              type="button"
              aria-pressed={one === how}
              title={asked.hows[one] ?? HOWS[one]}
              class={asked.hows[one] === null ? "" : "lacking"}
              onClick={() => go({ sources: { method: one } })}
            >
              {one}
            </button>
          ))}
        </span>
        {value && <Cut value={value} chosen={chosen} go={go} />}
      </div>
      <p class="soft from-meaning">
        {HOWS[how]}{" "}
        {how === "rollout" && asked.ends > SLOW
          ? "It reads every pair of tokens, which takes minutes at this length. "
          : ""}
        {value && <span>The number is {value.meaning}.</span>}
      </p>
      {lacks !== null && (
        <p class="failure" role="status">
          {sentence(lacks)}
        </p>
      )}
      {found.error && lacks === null && (
        <p class="failure" role="alert">
          {found.error.message}
        </p>
      )}
      {found.slow && (
        <div class="progress" role="progressbar" aria-label="loading">
          <i />
        </div>
      )}
      <div class="sources">
        <div class="stack from-texts">
          {value && (
            <section class="card" aria-label="the context">
              <h3>
                {asked.across ? "The text that was read" : "The text before"}{" "}
                <span class="soft">{count(value.n)} tokens</span>
              </h3>
              {value.n > value.tokens.length && (
                <Minimap
                  value={value}
                  chosen={chosen}
                  go={go}
                  root={root}
                  theme={theme}
                  setCentre={setCentre}
                />
              )}
              <Context {...shared} value={value} />
            </section>
          )}
          {lacks === null && !value && !found.error && (
            <p class="waiting">{found.slow ? "computing…" : ""}</p>
          )}
          <section class="card" aria-label="the answer">
            <h3>
              {asked.across
                ? "What was written"
                : asked.prompt === null
                  ? "The same text, and the word after it"
                  : "What was written after the prompt"}{" "}
              <span class="soft">choose one word or several</span>
            </h3>
            <AnswerPicker
              asked={asked}
              first={first}
              end={end}
              choose={choose}
              next={!asked.across && asked.ends > 1}
            />
          </section>
          {hidden && value && (
            <HiddenSegment
              key={chosen.hidden}
              run={run}
              answers={answers}
              go={go}
              first={first}
              end={end}
              hidden={hidden}
              text={hiddenText(value, hidden)}
              scroll={chosen.hidden !== opened.current}
            />
          )}
        </div>
        {value && <Ranked {...shared} value={value} first={first} end={end} />}
      </div>
    </>
  );
}

/**
 * Return the segment that the state hides, start to stop - 1, or null.
 * @param {State["sources"]} chosen
 */
function hiddenSegment(chosen) {
  const [start, stop] = (chosen.hidden ?? "").split("-").map(Number);
  return chosen.hidden && Number.isInteger(start) && Number.isInteger(stop)
    ? { start, stop }
    : null;
}

/**
 * Return the text of the hidden segment.
 * @type {(value: SourcesAnswer, hidden: {start: number, stop: number}) => string}
 */
const hiddenText = (value, { start, stop }) =>
  value.rows.find((row) => row.start === start && row.stop === stop)?.text ??
  value.tokens.slice(Math.max(0, start - value.start), Math.max(0, stop - value.start)).join("");

/**
 * How the context is cut into segments, where the text can be cut so.
 * @param {{value: SourcesAnswer, chosen: State["sources"], go: Go}} props
 */
function Cut({ value, chosen, go }) {
  const possible = Object.keys(CUTS).filter(
    (by) =>
      by === value.by ||
      by === chosen.cut ||
      (value.counts[by] > 1 && (by !== "parts" || value.n > 128)),
  );
  return (
    <label class="labelled">
      cut into{" "}
      <select
        value={value.by}
        onChange={(event) => go({ sources: { cut: event.currentTarget.value, hidden: null } })}
      >
        {possible.map((by) => (
          <option value={by} selected={by === value.by}>
            {count(value.counts[by])} {CUTS[by]}
          </option>
        ))}
      </select>
    </label>
  );
}

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
function Context({ value, lit, point, hidden, theme }) {
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
function Ranked({ asked, value, go, lit, point, hidden, end, first }) {
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
        {asked.hide === null ? "Hide one: the model runs again without it." : sentence(asked.hide)}
      </p>
    </section>
  );
}
