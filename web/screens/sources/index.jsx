/**
 * Sources: choose words of the answer, and see which parts of the context they come from; hide one
 * and run again.
 */
import { useRef, useState } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered, layerOf } from "../../parts/answered.jsx";
import { count } from "../../parts/numbers.js";
import { Term } from "../../parts/term.jsx";
import { asSentence } from "../../parts/text.js";
import { number, perRun, text } from "../../state/fields.js";
import { AnswerPicker } from "./answer.jsx";
import { HiddenSegment } from "./hidden.jsx";
import { Minimap } from "./minimap.jsx";
import { Context, Ranked } from "./segments.jsx";

export const title = "Sources";
export const shows = "which words an answer comes from";
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
  /** The layer and the head whose weights count; all of them unless one is chosen. */
  ofLayer: perRun(number("sl")),
  ofHead: perRun(number("sh")),
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

/** The term that explains a `how`. @type {Record<string, import("../../parts/term.jsx").TermName>} */
const TERM_OF = { weights: "weight", carried: "carried", rollout: "rollout", gradient: "gradient" };

/**
 * How far each `how` can be trusted, and why. The figures are those of docs/benchmarks.md: the
 * correlation of ranks with what hiding measures, of words of translations and of sentences of
 * summaries.
 * @type {Record<string, string>}
 */
const TRUST = {
  weights:
    "An estimate: heads also rest on words that they take nothing from, such as </s>. In order it " +
    "agrees with hiding by 0.68 for words of translations and 0.62 for sentences of summaries, " +
    "where 1 is the same order.",
  carried:
    "An estimate, and the best of them: a word at which heads rest counts little, since little is " +
    "carried from it. In order it agrees with hiding by 0.70 for words of translations and 0.65 " +
    "for sentences of summaries: rank by it, then hide what you claim.",
  rollout:
    "An estimate that mixes in what the residual connections carry anyway. In order it agrees " +
    "with hiding by 0.66 for words of translations, and only by 0.34 for sentences of summaries.",
  gradient:
    "An estimate that says little where the model is certain, since a small change then changes " +
    "nothing. In order it agrees with hiding by 0.22 for words of translations and 0.49 for " +
    "sentences of summaries: trust it least.",
  hidden:
    "Measured: only this way runs the model again, once for each part, and the other four are " +
    "judged by it. Of two parts that say the same, each can be hidden alone without a loss: hide " +
    "them together before you call them unused.",
};

/** The ways that one layer or head can answer; the others go through the whole model. */
const OF_ONE_HEAD = ["weights", "carried"];

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
              {asSentence(value.why)}
            </p>
          )
        }
      </Answered>
    </>
  );
}

/**
 * The answer and its context side by side, and the segments in the order of their scores.
 * @param {ScreenProps & {asked: AnswerOfRun}} props
 */
function Asked({ asked: described, ...props }) {
  const { run, go, answers, root, theme, transport } = props;
  const chosen = props.state.sources;
  // A saved file has no model that could run without a segment.
  const asked = transport.canRun
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
  const canChoose = OF_ONE_HEAD.includes(how) && Boolean(transport.send);
  const head =
    canChoose && chosen.ofLayer !== null
      ? { l: chosen.ofLayer, h: chosen.ofHead ?? undefined }
      : {};
  const [centre, setCentre] = useState(/** @type {number | null} */ (null));
  const query = {
    first,
    end,
    how,
    by: chosen.cut ?? "auto",
    window: WINDOW,
    centre: centre ?? undefined,
    ...view,
    ...head,
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
        {canChoose && lacks === null && (
          <HeadChoice run={run} readers={asked.readers} chosen={chosen} go={go} />
        )}
      </div>
      <p class="soft from-meaning">
        {how in TERM_OF && (
          <>
            <Term name={TERM_OF[how]}>{how}</Term>:{" "}
          </>
        )}
        {HOWS[how]}{" "}
        {how === "rollout" && asked.ends > SLOW
          ? "It reads every pair of tokens, which takes minutes at this length. "
          : ""}
        {value && <span>The number is {value.meaning}. </span>}
        <span data-trust>{TRUST[how]}</span>
      </p>
      {lacks !== null && (
        <p class="failure" role="status">
          {asSentence(lacks)}
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
 * Which layer and head count: all of them, a layer, or one of its heads.
 * @param {{run: Run, readers: number[], chosen: State["sources"], go: Go}} props
 */
function HeadChoice({ run, readers, chosen, go }) {
  const layers = readers.map((l) => run.attentions[l]).filter(Boolean);
  const layer = layers.find((one) => one.l === chosen.ofLayer);
  /** @param {string} typed */
  const toNumber = (typed) => (typed === "" ? null : Number(typed));
  return (
    <>
      <label class="labelled">
        layer{" "}
        <select
          value={layer ? String(layer.l) : ""}
          onChange={(event) =>
            go({ sources: { ofLayer: toNumber(event.currentTarget.value), ofHead: null } })
          }
        >
          <option value="">all</option>
          {layers.map((one) => (
            <option value={String(one.l)} selected={one === layer}>
              {layerOf(one)}
            </option>
          ))}
        </select>
      </label>
      {layer && layer.heads.length > 1 && (
        <label class="labelled">
          head{" "}
          <select
            value={chosen.ofHead === null ? "" : String(chosen.ofHead)}
            onChange={(event) => go({ sources: { ofHead: toNumber(event.currentTarget.value) } })}
          >
            <option value="">all</option>
            {layer.heads.map((h) => (
              <option value={String(h)} selected={h === chosen.ofHead}>
                {h}
              </option>
            ))}
          </select>
        </label>
      )}
    </>
  );
}

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
