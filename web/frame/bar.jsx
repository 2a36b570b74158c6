/**
 * What stands under the masthead: what the model wrote, the tabs of the screens, and the choice of
 * run and pieces.
 */
import { useLayoutEffect, useRef } from "preact/hooks";
import { useAnswer } from "../answers.js";
import { headName } from "../parts/answered.jsx";
import { percent } from "../parts/numbers.js";
import { clipped, visible } from "../parts/text.js";
import { screenOf } from "../screens/index.js";
import { stateAddress } from "../state/state.js";
import { offeredScreens } from "./shown.js";

/**
 * Links, so that a screen can be opened in another tab of the browser; a plain click stays here.
 * @param {{run: Run | null, state: State, go: Go}} props
 */
export function Tabs({ run, state, go }) {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const screens = offeredScreens(run, state);
  // On a phone the tabs do not fit: scroll the one that is shown into the middle, and not the page.
  useLayoutEffect(() => {
    const tab = list.current?.querySelector("[aria-current]");
    if (!list.current || !tab) return;
    const all = list.current.getBoundingClientRect();
    const one = tab.getBoundingClientRect();
    list.current.scrollLeft += one.left - all.left - (all.width - one.width) / 2;
  }, [state.screen, screens.length]);
  return (
    <nav class="tabs" aria-label="screens" ref={list}>
      {screens.map((screen) => (
        <a
          href={run ? stateAddress({ ...state, screen }) : "#"}
          aria-current={state.screen === screen ? "page" : undefined}
          title={screenOf(screen).shows}
          onClick={(event) => {
            event.preventDefault();
            go({ screen });
          }}
        >
          {screenOf(screen).title}
        </a>
      ))}
    </nav>
  );
}

/**
 * The other runs that are open, and whether words or their pieces are shown.
 * @param {FrameProps & {run: Run, runs: Run[]}} props
 */
export function Choices({ run, runs, state, go, openRun }) {
  const others = runs.some((one) => one.run === run.run) ? runs : [run, ...runs];
  const hasPieces = run.kind !== "example" && screenOf(state.screen).splitsWords;
  return (
    <div class="which">
      {others.length > 1 && (
        <label class="labelled">
          run{" "}
          <select
            value={run.run}
            onChange={(event) =>
              openRun(event.currentTarget.value, { lesson: null, caption: null })
            }
          >
            {others.map((one) => (
              <option value={one.run} selected={one.run === run.run}>
                {clipped(one.title, 22)}
              </option>
            ))}
          </select>
        </label>
      )}
      {hasPieces && (
        <span class="segments" role="group" aria-label="words or the pieces that the model reads">
          {["words", "pieces"].map((label, at) => (
            <button
              type="button"
              aria-pressed={state.pieces === at}
              onClick={() => go({ pieces: at }, false)}
            >
              {label}
            </button>
          ))}
        </span>
      )}
    </div>
  );
}

/**
 * What is chosen, in one line; on a phone a click unfolds the choices: model, run, attention, head.
 * @param {{run: Run, shown: Shown | null, open: boolean, toggle: () => void}} props
 */
export function Folded({ run, shown, open, toggle }) {
  const chosen = shown?.attention ? headName(shown.attention, shown.h) : "";
  const wrote = run.written ?? "";
  return (
    <button type="button" class="folded" aria-expanded={open} onClick={toggle}>
      <span>
        {[chosen, wrote && `“${visible(wrote)}”`].filter(Boolean).join(" · ") || "choices"}
      </span>
    </button>
  );
}

/**
 * What the model made of the text: a translation whose words can be clicked, or the next word.
 * @param {FrameProps & {run: Run}} props
 */
export function OutputLine({ run, state, go, answers, shown }) {
  const output = /** @type {NonNullable<Run["output"]>} */ (run.output);
  const gpt = output.kind === "gpt";
  const next = useAnswer(answers, gpt ? `runs/${run.run}/output` : null);
  if (gpt)
    return (
      <p class="wrote">
        <span class="soft">likeliest next:</span>
        {(next.value?.candidates ?? [])
          .slice(0, 3)
          .map((/** @type {OutputAnswer["candidates"][0]} */ one) => (
            <button type="button" onClick={() => go({ screen: "output" })}>
              {visible(one.text)} <small>{percent(one.p)}</small>
            </button>
          ))}
      </p>
    );
  const cross = shown?.attention?.kind === "cross";
  /**
   * @param {{i: number, word: number}} word  open where a word comes from, or choose it as the
   *   query of the attention that is shown
   */
  const open = (word) => {
    if (state.screen === "output") go({ query: word.i });
    else if (cross && (state.screen === "walk" || state.screen === "heads")) go({ query: word.i });
    else go({ screen: "alignment", query: null, alignment: { word: word.word } });
  };
  /** @param {{first: number, i: number, word: number}} word */
  const isChosen = (word) =>
    state.screen === "alignment"
      ? word.word === state.alignment.word
      : state.query !== null && word.first <= state.query && state.query <= word.i;
  const marks = state.screen === "alignment" || state.screen === "output" || cross;
  return (
    <p class="wrote">
      <span class="soft">the model wrote:</span>
      {output.words.map((word) => (
        <button
          type="button"
          aria-pressed={marks && isChosen(word)}
          title="which words does it come from?"
          onClick={() => open(word)}
        >
          {visible(word.name)}
        </button>
      ))}
    </p>
  );
}
