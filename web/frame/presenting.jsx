/**
 * For a projector and for paper: the screen and its caption without what is around them, the title
 * of the browser's tab, and the line that a printed page ends with.
 */
import { useEffect } from "preact/hooks";
import { findLesson } from "../lessons/lessons.js";
import { headName } from "../parts/answered.jsx";
import { clipped, visible } from "../parts/text.js";
import { screenOf } from "../screens/index.js";

/**
 * Return what the page shows, in a few words: a caption of a lesson, a screen of a run, an atlas.
 * @param {State} state
 * @param {Run | null} run
 * @param {Shown | null} shown
 */
export function pageTitle(state, run, shown) {
  if (state.atlas.name) return `Atlas: ${visible(state.atlas.name)}`;
  if (!state.run) return "Look inside attention";
  const lesson = findLesson(state.lesson);
  const caption = lesson && `${lesson.title} ${(state.caption ?? 0) + 1}/${lesson.captions.length}`;
  const { title, subject } = screenOf(state.screen);
  const head = subject === undefined && shown?.attention && headName(shown.attention, shown.h);
  const text = run && clipped(run.text ?? run.title, 50);
  return [caption, title, text, head].filter(Boolean).join(" · ");
}

/**
 * Keep the title of the browser's tab; in a notebook, whose tab is the notebook's, nothing changes.
 * @param {HTMLElement} root
 * @param {string} title
 */
export function useTitle(root, title) {
  useEffect(() => {
    if (root.id === "telescope") document.title = `${title} · Telescope`;
  }, [root, title]);
}

/**
 * What stands above a screen that is presented or printed: the text, what the model wrote, and the
 * way back.
 * @param {{run: Run, go: Go}} props
 */
export const TextAbove = ({ run, go }) => (
  <div class="presented inside">
    <p>
      {visible(run.text ?? run.title)}
      {run.written && <span class="soft"> → {visible(run.written)}</span>}
    </p>
    <button type="button" class="button small" onClick={() => go({ presenting: 0 }, false)}>
      end presenting (p)
    </button>
  </div>
);

/**
 * What only paper shows, below the screen: its title, and the address at which it can be opened.
 * @param {{title: string}} props
 */
export const PrintedAddress = ({ title }) => (
  <div class="printed inside">
    <p>{title}</p>
    <p class="figures">{visible(decoded(globalThis.location?.href ?? ""))}</p>
  </div>
);

/** Return an address with its letters as they are read. @param {string} address */
function decoded(address) {
  try {
    return decodeURI(address);
  } catch {
    return address; // a % that begins no letter
  }
}
