/** The keyboard shortcuts, in a dialog. */
import { useEffect, useRef } from "preact/hooks";

const KEYS = [
  ["1 … 9", "the screens, from left to right"],
  ["← →", "Walk: previous and next step. Map: pan"],
  ["↑ ↓", "Walk: previous and next query. Map: pan"],
  ["[ ]", "previous and next head"],
  ["{ }", "previous and next layer"],
  ["+ −", "Map: zoom in and out. Home: the whole matrix"],
  ["g", "Map: go to a query and a key"],
  ["t", "light or dark"],
  ["?", "this help"],
];

/** @param {{close: () => void}} props */
export function Help({ close }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="telescope-help">
      <h2 id="telescope-help">Keys</h2>
      <dl class="keys">
        {KEYS.map(([key, does]) => (
          <>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{does}</dd>
          </>
        ))}
      </dl>
      <p class="soft">
        Strips, matrices and maps take the focus: arrow keys then go from number to number, each
        written out in full.
      </p>
      <p style={{ marginTop: "18px" }}>
        <button class="button strong" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </p>
    </dialog>
  );
}
