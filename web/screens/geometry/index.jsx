/** Geometry: every token before and after attention, projected onto one plane. */
import { useEffect, useRef, useState } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered, layerOf } from "../../parts/answered.jsx";
import { Cells } from "../../parts/cells.jsx";
import { useLive } from "../../parts/live.js";
import { argmax, clamp, full, percent, short, sum } from "../../parts/numbers.js";
import { Term } from "../../parts/term.jsx";
import { visible } from "../../parts/text.js";
import { number, shared } from "../../state/fields.js";
import { drawn, moved } from "./moving.js";
import { Scatter } from "./scatter.jsx";

export const title = "Geometry";
export const shows = "every token as a point, before and after attention";
export const needs = "geometry";
export const subject = "layer";
export const splitsWords = true;
export const fields = {
  ...shared("layer", "query", "key"),
  /** Between the points before attention, 0, and after it, 1. */
  progress: number("alpha", 1),
};
export { Geometry as view };

const MOST = 512; // tokens in one answer

/**
 * The points of a short text as words, of a long one 512 tokens around the query.
 * @param {ScreenProps} props
 */
function Geometry(props) {
  const { run, attention, state, answers } = props;
  const from = Math.max(0, Math.min((state.query ?? 0) - MOST / 2, attention.n_q - MOST));
  const words = state.pieces !== 1 && !run.example;
  const range =
    attention.n_q <= MOST
      ? { by: words ? "words" : undefined }
      : { start: from, stop: from + MOST };
  const found = useAnswer(answers, `runs/${run.run}/geometry`, { l: attention.l, ...range });
  const tokens = useAnswer(answers, words ? `runs/${run.run}/tokens` : null, {
    l: attention.l,
    axis: "q",
  });
  const where = run.example ? "attention" : `the attention of layer ${layerOf(attention)}`;
  return (
    <>
      <h2>Before and after</h2>
      <p class="lede">
        Every word is a point: hollow before {where}, filled after it. The plane is spanned by the
        two directions in which these points vary most.
      </p>
      <Answered answer={words && !tokens.value ? { ...found, value: null } : found}>
        {(/** @type {GeometryAnswer} */ value) => {
          const joined =
            words && tokens.value?.words && value.tokens.length === tokens.value.names?.length;
          const ids = joined ? /** @type {number[]} */ (tokens.value?.words) : null;
          const wordOf = (/** @type {number} */ token) => ids?.[token] ?? token;
          const queryOf = (/** @type {number} */ point) => (ids ? ids.lastIndexOf(point) : point);
          return (
            <Plane
              key={value.l + "/" + value.start}
              found={value}
              {...props}
              wordOf={wordOf}
              queryOf={queryOf}
            />
          );
        }}
      </Answered>
    </>
  );
}

/**
 * @typedef {import("./moving.js").Moving} Moving
 */

/**
 * The points between before and after, a slider, and the cosines of the chosen word.
 * @param {ScreenProps & {found: GeometryAnswer, wordOf: (token: number) => number, queryOf: (point:
 *   number) => number}} props which point a token belongs to, and a token of a point
 */
function Plane({ found, run, attention, answers, transport, state, go, wordOf, queryOf }) {
  const { tokens, space } = found;
  const n = tokens.length;
  const mostMoved = argmax(found.moved.map((cosine) => -cosine));
  const i = state.query === null ? mostMoved : clamp(wordOf(state.query) - found.start, 0, n - 1);
  const other = state.key === null ? -1 : wordOf(state.key) - found.start;
  const j = other >= 0 && other < n ? other : null;
  const [trails, setTrails] = useState(true);
  const [alpha, setAlpha] = useState(state.geometry.progress);
  useEffect(() => setAlpha(state.geometry.progress), [state.geometry.progress]);
  const [playing, play] = usePlay(setAlpha, (end) => go({ geometry: { progress: end } }, false));
  const live = useLive({ run, go, transport, answers });
  const [held, hold] = useState(/** @type {import("./moving.js").HeldPlane | null} */ (null));
  const isHeld = held !== null && (!held.released || live.isPending);
  const { before, after } =
    space && isHeld
      ? drawn(space, live.inputs.x, held)
      : { before: found.before, after: found.after };
  /** Move the word of a point, as far as it moves in the plane. @type {Moving["move"]} */
  const move = (at, [x, y]) => {
    if (!space) return;
    const plane = isHeld ? held : { axes: space.axes, centre: space.centre, released: false };
    hold({ ...plane, released: false });
    const row = space.rows[at];
    live.set("x", row, moved(live.inputs.x[row], [x, y], plane));
    if (space.rows[i] !== row) go({ query: queryOf(found.start + at) }, false);
  };
  // A word in two scenes has one vector before them: its point is moved once.
  const handles = (space?.rows ?? []).flatMap((row, at, rows) =>
    rows.indexOf(row) === at ? [at] : [],
  );
  /** @type {Moving | null} */
  const moving =
    space && transport.send
      ? { isHeld, handles, move, release: () => held && hold({ ...held, released: true }) }
      : null;
  /** @param {number} value */
  const slide = (value) => {
    setAlpha(value);
    go({ geometry: { progress: value } }, false);
  };
  return (
    <div class="plane" style={{ marginTop: "18px" }}>
      <div class="stack" style={{ gap: "14px" }}>
        <div class="card" style={{ padding: "8px" }}>
          <Scatter
            tokens={tokens}
            before={before}
            after={after}
            alpha={alpha}
            i={i}
            j={j}
            trails={trails}
            explained={found.explained}
            moving={moving}
            choose={(/** @type {number} */ at) => go({ query: queryOf(found.start + at) })}
          />
        </div>
        {moving && (
          <p class="soft hint" role="status" data-held={isHeld ? "" : undefined}>
            {isHeld
              ? "The plane is held while a word is moved, and fitted again when you let go."
              : "Drag a hollow point, or give it the focus and press arrow keys: the word’s vector " +
                "moves, and what attention makes of it follows."}
          </p>
        )}
        <div class="slide">
          <button type="button" class="button" onClick={() => play(alpha)}>
            {playing ? "■ stop" : "▶ play"}
          </button>
          <input
            type="range"
            min="0"
            max="1"
            step="0.01"
            value={alpha}
            aria-label="from before attention, 0, to after it, 1"
            onInput={(event) => slide(Number(event.currentTarget.value))}
          />
          <span class="figures" style={{ minWidth: "8.5ch" }}>
            {alpha === 0 ? "before" : alpha === 1 ? "after" : `α ${alpha.toFixed(2)}`}
          </span>
          <label class="labelled">
            <input
              type="checkbox"
              checked={trails}
              onChange={(event) => setTrails(event.currentTarget.checked)}
            />{" "}
            trails
          </label>
        </div>
        {moving && space && (
          <Cells {...{ run, go, transport, live }} scene={attention.l} chosen={space.rows[i]} />
        )}
      </div>
      <aside class="aside card">
        <h2 class="token q">{visible(tokens[i])}</h2>
        <dl class="facts">
          <dt>
            <Term name="variance in the plane" />
          </dt>
          <dd>{percent(sum(found.explained))}</dd>
          <dt>first + second direction</dt>
          <dd>{found.explained.map((share) => percent(share)).join(" + ")}</dd>
          <dt>
            <Term name="cosine">cos</Term>(before, after) of this token
          </dt>
          <dd title={full(found.moved[i])}>{short(found.moved[i])}</dd>
        </dl>
        <p class="soft" style={{ fontSize: "13.5px" }}>
          Points that are close in the plane may be far apart: {percent(1 - sum(found.explained))}{" "}
          of the variance lies outside it. The cosines are those of the whole vectors.
        </p>
        {found.cosines ? (
          <Neighbours
            cosines={found.cosines}
            tokens={tokens}
            i={i}
            j={j}
            pick={(/** @type {number} */ at) => go({ key: queryOf(found.start + at) })}
          />
        ) : (
          <p class="soft">Cosines of pairs are shown for texts of at most 64 tokens.</p>
        )}
      </aside>
    </div>
  );
}

/**
 * The cosines of the chosen token with the nearest others, before and after.
 * @param {{cosines: {before: number[][], after: number[][]}, tokens: string[], i: number, j: number
 *   | null, pick: (at: number) => void}} props
 */
function Neighbours({ cosines: { before, after }, tokens, i, j, pick }) {
  const rows = tokens
    .map((_, at) => at)
    .filter((at) => at !== i)
    .sort((a, b) => after[i][b] - after[i][a])
    .slice(0, 9);
  if (j !== null && j !== i && !rows.includes(j)) rows.push(j);
  return (
    <table class="pairs">
      <caption class="hidden">cosines with {visible(tokens[i])}</caption>
      <thead>
        <tr>
          <th scope="col">cosine with</th>
          <th scope="col">before</th>
          <th scope="col">after</th>
          <th scope="col">change</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((at) => (
          <tr>
            <td>
              <button
                type="button"
                class={at === j ? "k" : ""}
                aria-pressed={at === j}
                onClick={() => pick(at)}
              >
                {visible(tokens[at])}
              </button>
            </td>
            <td title={full(before[i][at])}>{short(before[i][at], 3)}</td>
            <td title={full(after[i][at])}>{short(after[i][at], 3)}</td>
            <td>{signedShort(after[i][at] - before[i][at])}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Return a difference with its sign. @param {number} x */
const signedShort = (x) => `${x > 0 ? "+" : ""}${x.toFixed(3)}`.replace("-", "−");

/**
 * Return whether the animation runs, and the function that starts or stops it: from before to after
 * in 1.5 seconds, or at once for readers who prefer reduced motion.
 * @param {(alpha: number) => void} set
 * @param {(alpha: number) => void} done
 */
function usePlay(set, done) {
  const frame = useRef(0);
  const [playing, setPlaying] = useState(false);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);
  /** @param {number} from */
  const play = (from) => {
    cancelAnimationFrame(frame.current);
    if (playing) return setPlaying(false);
    const begin = from > 0.99 ? 0 : from;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return done(from > 0.5 ? 0 : 1);
    setPlaying(true);
    const start = performance.now();
    /** @param {number} time */
    const tick = (time) => {
      const t = Math.min(1, (time - start) / 1500);
      set(Number((begin + (1 - begin) * (t * t * (3 - 2 * t))).toFixed(3)));
      if (t < 1) frame.current = requestAnimationFrame(tick);
      else {
        setPlaying(false);
        done(1);
      }
    };
    frame.current = requestAnimationFrame(tick);
    return undefined;
  };
  return /** @type {const} */ ([playing, play]);
}
