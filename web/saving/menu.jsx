/** The menu that saves the current view. */
import { useEffect, useRef, useState } from "preact/hooks";
import { findLesson } from "../lessons/lessons.js";
import { headName, layerOf } from "../parts/answered.jsx";
import { clipped } from "../parts/text.js";
import { screenOf } from "../screens/index.js";
import { statePath } from "../state/state.js";
import { asPng, asSvg, saveFile } from "./save.js";

/**
 * The view as a picture or a drawing; a server also offers a page and its numbers.
 * @param {{run: Run | null, state: State, shown: {attention?: Attention, h: number} | null,
 *   transport: Transport, root: HTMLElement}} props
 */
export function SaveMenu({ run, state, shown, transport, root }) {
  const [open, setOpen] = useState(false);
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  const [busy, setBusy] = useState(/** @type {string | null} */ (null));
  const element = useRef(/** @type {HTMLDivElement | null} */ (null));
  useEffect(() => {
    if (!open) return undefined;
    /** @type {HTMLElement | null | undefined} */ (
      element.current?.querySelector(".menu button")
    )?.focus();
    /** @param {Event} event */
    const closeOutside = (event) => {
      const { type, key } = /** @type {KeyboardEvent} */ (event);
      const outside = !element.current?.contains(/** @type {Node} */ (event.target));
      if (type === "keydown" ? key === "Escape" : outside) setOpen(false);
    };
    document.addEventListener("pointerdown", closeOutside);
    document.addEventListener("keydown", closeOutside);
    return () => {
      document.removeEventListener("pointerdown", closeOutside);
      document.removeEventListener("keydown", closeOutside);
    };
  }, [open]);
  const ofAtlas = state.atlas.name !== null;
  if (!ofAtlas && (!run || !shown)) return null;
  const lesson = findLesson(state.lesson);
  const name = `telescope-${ofAtlas ? "atlas" : state.screen}`;
  // An atlas is no run, whose answers could be put into one file.
  const file = ofAtlas ? undefined : transport.file;
  const caption = captionOf(run, state, shown);
  /** @param {string} format */
  const exportFile = (format) => {
    if (!file || !run || !shown) return undefined;
    const { attention, h } = shown;
    const layer = attention?.l ?? null;
    const shownState = { ...state, layer, head: h, lesson: null, caption: null };
    const place = { l: attention?.l, h, i: state.query, start: statePath(shownState) };
    return file(run, place, format).then((blob) => saveFile(blob, `telescope.${format}`));
  };
  /** @type {Record<string, () => Promise<void> | undefined>} */
  const actions = {
    "Picture (PNG)": async () => saveFile(await asPng(root, caption), `${name}.png`),
    "Drawing (SVG)": async () =>
      saveFile(new Blob([asSvg(root, caption).text], { type: "image/svg+xml" }), `${name}.svg`),
    ...(file && {
      "Page that opens from disk (HTML)": () => exportFile("html"),
      "All numbers (JSON)": () => exportFile("json"),
    }),
    ...(lesson &&
      transport.lesson && {
        "This lesson as a file (HTML)": async () =>
          saveFile(
            /** @type {Blob} */ (await transport.lesson?.(lesson.name)),
            `telescope-${lesson.name}.html`,
          ),
      }),
  };
  /** @param {string} label */
  const save = async (label) => {
    setProblem(null);
    setBusy(label);
    try {
      await actions[label]();
      setOpen(false);
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
    setBusy(null);
  };
  const toggle = () => {
    setOpen(!open);
    setProblem(null);
  };
  return (
    <div ref={element} style={{ position: "relative" }}>
      <button
        type="button"
        class="button square"
        aria-label="save this view"
        title="save this view"
        aria-expanded={open}
        aria-haspopup="true"
        onClick={toggle}
      >
        ⤓
      </button>
      {open && (
        <div class="menu">
          {Object.keys(actions).map((label) => (
            <button type="button" disabled={busy !== null} onClick={() => save(label)}>
              {label}
              {busy === label ? (
                <>
                  {" "}
                  <span role="status">…</span>
                </>
              ) : (
                ""
              )}
            </button>
          ))}
          {problem && (
            <p class="soft" role="alert" style={{ maxWidth: "30ch", padding: "6px 12px" }}>
              {problem}
            </p>
          )}
        </div>
      )}
    </div>
  );
}

/**
 * Return what a saved picture shows: the text, the model, and the attention or the atlas.
 * @param {Run | null} run
 * @param {State} state
 * @param {{attention?: Attention, h: number} | null} shown
 */
function captionOf(run, state, shown) {
  if (state.atlas.name !== null) return `Atlas ${clipped(state.atlas.name, 80)} · Telescope`;
  const { subject } = screenOf(state.screen);
  const attention = subject === undefined || subject === "layer" ? shown?.attention : undefined;
  const text = clipped(run?.text ?? run?.title ?? "", 80);
  return [text, `${run?.model}${attention ? headsOf(attention, state, shown?.h ?? 0) : ""}`]
    .concat("Telescope")
    .join(" · ");
}

/**
 * Return which heads of an attention a screen shows: one, or on Alignment the mean of all.
 * @param {Attention} attention
 * @param {State} state
 * @param {number} h
 */
function headsOf(attention, state, h) {
  const isMean = state.screen === "alignment" && state.alignment.weightsOf !== "head";
  if (!isMean || attention.heads.length === 1) return `, ${headName(attention, h)}`;
  const layer = attention.title ?? `layer ${layerOf(attention)}`;
  return `, ${layer}, mean of ${attention.heads.length} heads`;
}
