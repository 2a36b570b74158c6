/**
 * The way of one vector through the drawing of the model: from the embedding through every
 * attention and feed-forward network to the output, with its length at each station.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import { useAnswer } from "../answers.js";
import { Answered, layerOf } from "../parts/answered.jsx";
import { clamp, count, full, percent, short } from "../parts/numbers.js";
import { visible } from "../parts/text.js";

const PAUSE = 900; // milliseconds at each station

/**
 * @typedef {Pick<Station, "kind" | "l">} StationPlace  a station of the way, by the attention that
 *   it belongs to
 */

/** What each station is called, and what happens there. @type {Record<string, [string, string]>} */
const STATIONS = {
  embedding: ["embedding", "the token becomes a vector"],
  position: ["⊕ position", "its position is added"],
  self: ["self-attention", "what the heads found in the same text is added"],
  cross: ["cross-attention", "what the heads found in the text that was read is added"],
  "feed-forward": ["feed-forward", "what the network made of this vector alone is added"],
  output: ["output", "this vector is compared with every word of the vocabulary"],
};

/** Return what goes to the view that shows a station. @type {(place: StationPlace) => StateChange} */
const viewOf = ({ kind, l }) =>
  kind === "output"
    ? { screen: "output" }
    : kind === "embedding" || kind === "position"
      ? { screen: "positions", layer: l, kind: null }
      : { screen: "walk", layer: l, kind: null, walk: { step: "after" } };

/**
 * The stations of the vector of query i, as a list that is stepped through by buttons, arrow keys,
 * or by itself.
 * @param {{run: Run, place: StationPlace, i: number, move: (place: StationPlace) => void, close: ()
 *   => void, go: Go, answers: import("../answers.js").Answers}} props
 */
export function Flow({ run, place, i, move, close, go, answers }) {
  const found = useAnswer(answers, `runs/${run.run}/flow`, { l: place.l, i });
  return (
    <section class="flow card" aria-label="the way of a vector through the model">
      <button
        type="button"
        class="button square close"
        aria-label="close the way of a vector"
        onClick={close}
      >
        ×
      </button>
      <Answered answer={found}>
        {(/** @type {FlowAnswer} */ value) => (
          <Stations {...{ run, i, place, move, go, answers }} flow={value} />
        )}
      </Answered>
    </section>
  );
}

/**
 * @param {Omit<Parameters<typeof Flow>[0], "close"> & {flow: FlowAnswer}} props
 */
function Stations({ run, i, place, move, go, answers, flow }) {
  const { stations, size } = flow;
  const at = Math.max(
    0,
    stations.findIndex((one) => one.kind === place.kind && one.l === place.l),
  );
  const station = stations[at];
  const list = useRef(/** @type {HTMLOListElement | null} */ (null));
  const [playing, play] = useState(false);
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  useEffect(() => {
    if (!playing) return undefined;
    if (at === stations.length - 1) return void play(false);
    const timer = setTimeout(() => move(stations[at + 1]), PAUSE);
    return () => clearTimeout(timer);
  }, [playing, at]);
  // The current station stays in view where the list is wider than the page.
  useEffect(() => {
    const box = list.current;
    const own = /** @type {HTMLElement | null} */ (box?.children[at]);
    if (box && own) box.scrollLeft = own.offsetLeft - (box.clientWidth - own.offsetWidth) / 2;
  }, [at]);

  /** @param {number} to */
  const step = (to) => {
    play(false);
    move(stations[clamp(to, 0, stations.length - 1)]);
  };
  /** @param {KeyboardEvent} event */
  const pressKey = (event) => {
    const side = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!side) return;
    event.preventDefault();
    event.stopPropagation();
    const to = clamp(at + side, 0, stations.length - 1);
    step(to);
    /** @type {HTMLElement | null} */ (
      list.current?.children[to]?.querySelector("button")
    )?.focus();
  };
  const most = Math.max(...stations.map((one) => one.norm));
  /** @param {StationPlace} one */
  const block = ({ kind, l }) =>
    ["self", "cross", "feed-forward"].includes(kind) ? `${layerOf(run.attentions[l])} ` : "";
  const [name, happens] = STATIONS[station.kind];
  return (
    <>
      <div class="row">
        <h3>
          The vector of <b class="q">{visible(flow.token)}</b>, {count(size)} numbers, on its way
        </h3>
        <span class="row">
          <button
            type="button"
            class="button small"
            aria-label="previous station"
            disabled={at === 0}
            onClick={() => step(at - 1)}
          >
            ◀
          </button>
          {!isStill && (
            <button
              type="button"
              class="button small"
              onClick={() => {
                if (!playing && at === stations.length - 1) move(stations[0]);
                play(!playing);
              }}
            >
              {playing ? "■ stop" : "▶ play"}
            </button>
          )}
          <button
            type="button"
            class="button small"
            aria-label="next station"
            disabled={at === stations.length - 1}
            onClick={() => step(at + 1)}
          >
            ▶
          </button>
        </span>
      </div>
      <ol class="stations" ref={list} onKeyDown={pressKey}>
        {stations.map((one, nr) => (
          <li class={nr <= at ? "past" : ""}>
            <button
              type="button"
              aria-current={nr === at ? "step" : undefined}
              tabindex={nr === at ? 0 : -1}
              onClick={() => step(nr)}
            >
              <span class="what">
                {block(one)}
                {STATIONS[one.kind][0]}
              </span>
              <i style={{ width: `${(100 * one.norm) / most}%` }} />
              <span class="figures" title={full(one.norm)}>
                {short(one.norm, 3)}
              </span>
            </button>
          </li>
        ))}
      </ol>
      <p aria-live="polite">
        <b>
          {station.kind === "output" || !block(station) ? "" : `Block ${block(station)}· `}
          {name}
        </b>
        : {happens}. Its length is now <b class="figures">{short(station.norm)}</b>
        {station.cosine === null ? (
          ""
        ) : (
          <>
            , and its cosine with the vector before{" "}
            <b class="figures" title={full(station.cosine)}>
              {short(station.cosine, 3)}
            </b>
          </>
        )}
        .{" "}
        <button type="button" class="button small" onClick={() => go(viewOf(station))}>
          show it
        </button>
      </p>
      {station.kind === "feed-forward" && (
        <FeedForward run={run} l={station.l} i={i} answers={answers} />
      )}
      <p class="soft hint">
        {flow.pre_norm
          ? "Every attention and network reads this vector normalised, and adds to it. "
          : "After every addition the vector is normalised (add & norm). "}
        Bars are lengths.
      </p>
    </>
  );
}

/**
 * What the feed-forward network of a block does with the vector: how many of its hidden units are
 * active, the largest of them, and what is added.
 * @param {{run: Run, l: number, i: number, answers: import("../answers.js").Answers}} props
 */
function FeedForward({ run, l, i, answers }) {
  const found = useAnswer(answers, `runs/${run.run}/after`, { l, i });
  return (
    <Answered answer={found}>
      {(/** @type {AfterAnswer} */ { stages }) => {
        const hidden = stages.find((stage) => stage.name === "hidden");
        const fed = stages.find((stage) => stage.name === "fed");
        if (!hidden?.largest || !fed) return null;
        const most = Math.max(...hidden.largest.map((one) => Math.abs(one.value))) || 1;
        return (
          <div class="feed-forward">
            <p>
              The network widens {count(fed.size)} numbers to <b>{count(hidden.size)}</b> hidden
              units. <b>{count(Math.round((hidden.active ?? 0) * hidden.size))}</b> of them (
              {percent(hidden.active ?? 0)}) are not zero for this word; these are the largest. Back
              at {count(fed.size)} numbers, a vector of length{" "}
              <b class="figures">{short(fed.norm)}</b> is added.
            </p>
            <table class="live-bars">
              <caption class="hidden">the largest hidden units</caption>
              <tbody>
                {hidden.largest.map(({ unit, value }) => (
                  <tr>
                    <th scope="row" class="soft">
                      unit {unit}
                    </th>
                    <td class="bar-room">
                      <svg
                        class="meter"
                        viewBox="0 0 100 10"
                        preserveAspectRatio="none"
                        aria-hidden="true"
                      >
                        <rect
                          y="1"
                          height="8"
                          width={Math.max(0.3, (100 * Math.abs(value)) / most)}
                          fill="var(--bar)"
                        />
                      </svg>
                    </td>
                    <td class="figures" title={full(value)}>
                      {short(value)}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        );
      }}
    </Answered>
  );
}
