/** The menu that saves the current view. */
import { useEffect, useRef, useState } from "preact/hooks";
import { findLesson } from "../lessons/lessons.js";
import { headName } from "../parts/answered.jsx";
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
  if (!run || !shown) return null;
  const lesson = findLesson(state.lesson);
  const name = `telescope-${state.screen}`;
  const { file } = transport;
  const { subject } = screenOf(state.screen);
  const where =
    shown.attention && (subject === undefined || subject === "layer")
      ? `, ${headName(shown.attention, shown.h)}`
      : "";
  const caption = `${clipped(run.text ?? run.title, 80)} · ${run.model}${where} · Telescope`;
  const shownState = {
    ...state,
    layer: shown.attention?.l ?? null,
    head: shown.h,
    lesson: null,
    caption: null,
  };
  /** @param {string} format */
  const exportFile = (format) =>
    file?.(
      run,
      { l: shown.attention?.l, h: shown.h, i: state.query, start: statePath(shownState) },
      format,
    ).then((blob) => saveFile(blob, `telescope.${format}`));
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
