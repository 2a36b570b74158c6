/**
 * One head of an atlas: its habits, where its weight goes, its averaged map, and its strongest
 * texts.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered } from "../../parts/answered.jsx";
import { PALETTES, paletteColour } from "../../parts/colour.js";
import { paint } from "../../parts/matrix.jsx";
import { count, counted, full, percent, short } from "../../parts/numbers.js";
import { Term } from "../../parts/term.jsx";
import { clipped, visible } from "../../parts/text.js";
import { Mark } from "./picture.jsx";

/**
 * One head over the whole corpus: its habits, its distances, its mean map, its strongest texts.
 * @param {import("./index.jsx").AtlasProps & {atlas: AtlasAnswer, l: number, h: number,
 *   titled?: boolean}} props
 */
export function AtlasHead({ atlas, l, h, titled, ...props }) {
  const known =
    l >= 0 && atlas.heads.some((one) => one.layer === atlas.layers[l] && one.head === h);
  const found = useAnswer(
    props.answers,
    known ? `atlases/${encodeURIComponent(atlas.atlas)}/head` : null,
    { l, h },
  );
  if (!known)
    return (
      <section class="card">
        <p class="soft">{visible(atlas.atlas)} has no such head.</p>
      </section>
    );
  return (
    <section class="card atlas-head" aria-label={`one head of ${atlas.atlas}`}>
      <Answered answer={found}>
        {(/** @type {AtlasHeadAnswer} */ value) => (
          <>
            <h3>
              {titled ? (
                <>
                  <span class="soft">{visible(atlas.atlas)}</span>{" "}
                </>
              ) : (
                ""
              )}
              <Mark kind={value.kind} /> {visible(value.layer)}, head {value.head}{" "}
              <span class="soft">{value.kind}</span>
            </h3>
            <Habits atlas={atlas} head={value} />
            <div class="profiles">
              <AveragedMap maps={value.maps} sizes={atlas.maps} />
              <div>
                <Bars title="weight by distance" profile={value.profiles.distance} />
                <Bars title="weight by kind of token" profile={value.profiles.class} />
              </div>
            </div>
            <Texts {...props} atlas={atlas} head={value} l={l} />
          </>
        )}
      </Answered>
    </section>
  );
}

/**
 * The share of each habit: a bar for the mean over all queries, and a line from 5 to 95 % of the
 * texts.
 * @param {{atlas: AtlasAnswer, head: AtlasHeadAnswer}} props
 */
function Habits({ atlas, head }) {
  const habits = Object.keys(atlas.habit_keys).filter((habit) => head[habit] !== null);
  const numbers = ["entropy", "spread", "largest_logit"].filter(
    (name) => typeof head[name] === "number",
  );
  return (
    <>
      <table class="ledger head-habits">
        <caption class="hidden">the share of the weight on each kind of key</caption>
        <thead class="hidden">
          <tr>
            <th scope="col">habit</th>
            <th scope="col">share</th>
            <th scope="col">as a bar</th>
          </tr>
        </thead>
        <tbody>
          {habits.map((habit) => {
            const [low, high] = [head[`${habit}.q5%`], head[`${habit}.q95%`]].map(
              (x) => 100 * Number(x ?? 0),
            );
            return (
              <tr
                class={head[habit] >= atlas.clear ? "chosen" : ""}
                title={
                  `the share on ${atlas.habit_keys[habit]}; from 5 to 95 % of the texts: ` +
                  `${percent(low / 100)} to ${percent(high / 100)}`
                }
              >
                <td>{habit === "sink" ? <Term name="sink" /> : habit}</td>
                <td class="now" title={full(head[habit])}>
                  {percent(head[habit])}
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
                      width={Math.max(0.3, 100 * head[habit])}
                      fill="var(--bar)"
                    />
                    <rect
                      x={low}
                      y="4.4"
                      height="1.2"
                      width={Math.max(0.2, high - low)}
                      fill="var(--ink)"
                    />
                  </svg>
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
      <p class="soft head-numbers">
        {numbers.map((name) => (
          <>
            <span>
              {name === "entropy" || name === "spread" ? (
                <Term name={name} />
              ) : (
                name.replace(/_/g, " ")
              )}{" "}
              <b class="figures" title={full(head[name])}>
                {short(head[name], 3)}
              </b>
            </span>{" "}
          </>
        ))}{" "}
        <span>The line in a bar spans 5 to 95 % of the texts.</span>
      </p>
    </>
  );
}

/**
 * A profile as bars: the weight by distance, or by kind of token.
 * @param {{title: string, profile: {labels: string[], shares: (number | null)[]}}} props
 */
function Bars({ title, profile }) {
  const shares = profile.shares.map((share) => share ?? 0);
  const last = profile.shares.findLastIndex((share) => (share ?? 0) > 0.0005);
  if (last < 0) return <p class="soft">{title}: unknown in cross-attention</p>;
  const most = Math.max(...shares);
  return (
    <figure class="bars">
      <figcaption>{title}</figcaption>
      <div
        role="img"
        aria-label={`${title}: ${shares
          .slice(0, last + 1)
          .map((share, at) => `${profile.labels[at]} ${percent(share)}`)
          .join(", ")}`}
      >
        {shares.slice(0, last + 1).map((share, at) => (
          <span title={`${profile.labels[at]}: ${full(share)}`}>
            <small>{clipped(profile.labels[at], 15)}</small>
            <i style={{ width: `${(100 * share) / most}%` }} />
            <small>{percent(share)}</small>
          </span>
        ))}
      </div>
    </figure>
  );
}

/**
 * The mean of the head’s maps over texts of up to so many tokens; at first the length with most
 * texts.
 * @param {{maps: Record<string, number[][]>, sizes: Record<string, number>}} props
 */
function AveragedMap({ maps, sizes }) {
  const lengths = Object.keys(sizes);
  const most = lengths.reduce((best, one) => (sizes[one] > sizes[best] ? one : best), lengths[0]);
  const [chosen, setChosen] = useState(/** @type {string | null} */ (null));
  const length = chosen && lengths.includes(chosen) ? chosen : most;
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const rows = maps[length];
  useEffect(() => {
    if (rows) paint(canvas.current, rows, (x) => paletteColour(PALETTES.viridis, Math.sqrt(x)));
  }, [rows]);
  if (!rows) return <p class="soft">No text has 32 tokens, so there is no averaged map.</p>;
  return (
    <figure class="averaged">
      <canvas ref={canvas} role="img" aria-label="averaged map: queries down, keys across" />
      <figcaption class="soft">
        averaged map: queries down, keys across.{" "}
        {lengths.length > 1 ? (
          <label class="labelled">
            up to{" "}
            <select value={length} onChange={(event) => setChosen(event.currentTarget.value)}>
              {lengths.map((one) => (
                <option value={one} selected={one === length}>
                  {one} tokens, {counted(sizes[one], "text")}
                </option>
              ))}
            </select>
          </label>
        ) : (
          <>
            {counted(sizes[length], "text")} of up to {length} tokens.
          </>
        )}
      </figcaption>
    </figure>
  );
}

/**
 * The texts in which a habit is strongest; each can be opened as a run.
 * @param {Pick<import("./index.jsx").AtlasProps, "state" | "go" | "openRun" | "transport"> &
 *   {atlas: AtlasAnswer, head: AtlasHeadAnswer, l: number}} props
 */
function Texts({ atlas, head, l, state, go, openRun, transport }) {
  const [busy, setBusy] = useState(/** @type {string | null} */ (null));
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  const habits = Object.keys(head.evidence).filter((habit) => head.evidence[habit].length);
  useEffect(() => setProblem(null), [head]);
  if (!habits.length) return <p class="soft">No text is long enough to be evidence.</p>;
  const strongest = [...habits].sort((a, b) => (head[b] ?? 0) - (head[a] ?? 0))[0];
  const habit =
    state.atlas.habit && habits.includes(state.atlas.habit)
      ? state.atlas.habit
      : habits.includes(head.kind)
        ? head.kind
        : strongest;
  /** @type {(rank: number, screen: ScreenName) => Promise<void>} */
  const open = async (rank, screen) => {
    setBusy(`${rank}${screen}`);
    setProblem(null);
    try {
      const made = await transport.send?.("runs", {
        atlas: atlas.atlas,
        l,
        h: head.head,
        habit,
        rank,
      });
      openRun(made.run, {
        atlas: { name: null },
        screen,
        layer: made.opened.l,
        head: made.opened.h,
      });
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
    setBusy(null);
  };
  return (
    <>
      <div class="row texts-head">
        <h4>Its strongest texts</h4>
        <label class="labelled">
          for{" "}
          <select
            value={habit}
            onChange={(event) => go({ atlas: { habit: event.currentTarget.value } }, false)}
          >
            {habits.map((one) => (
              <option value={one} selected={one === habit}>
                {one}
              </option>
            ))}
          </select>
        </label>
      </div>
      {problem && (
        <p class="failure" role="alert">
          {problem}
        </p>
      )}
      <ol class="evidence">
        {head.evidence[habit].map((text, rank) => (
          <li key={`${text.text}/${text.first}`}>
            <p class="excerpt">{clipped(text.excerpt.replace(/\s+/g, " "), 150)}</p>
            <div class="row">
              <b class="figures" title={full(text.share)}>
                {percent(text.share)}
              </b>
              <span class="soft">
                {clipped(text.source.split("/").at(-1) ?? "", 28)}
                {text.line ? `, line ${count(text.line)}` : ""}, {count(text.tokens)} tokens
              </span>
              {transport.send &&
                /** @type {ScreenName[]} */ (["walk", "map"]).map((screen) => (
                  <button
                    type="button"
                    class="button small"
                    disabled={busy !== null}
                    onClick={() => open(rank, screen)}
                  >
                    {busy === `${rank}${screen}` ? "opening…" : screen === "walk" ? "Walk" : "Map"}
                  </button>
                ))}
            </div>
          </li>
        ))}
      </ol>
    </>
  );
}
