/**
 * Words of the trade with their meaning: shown on hover, on focus and on a tap, and read by screen
 * readers. The meanings are those of terms.json, which the reference's glossary prints too.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import TERMS from "./terms.json";

/** @typedef {keyof typeof TERMS} TermName */

const GAP = 8; // pixels between a meaning and the edge of the page

let terms = 0; // a notebook shows several explorers: numbers are never used twice

/**
 * A word with its meaning. Without children the name itself is shown. It is a button of its own: it
 * cannot stand inside another button or a link.
 * @param {{name: TermName, children?: any}} props
 */
export function Term({ name, children }) {
  const [id] = useState(() => `meaning-${(terms += 1)}`);
  const word = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const meaning = useRef(/** @type {HTMLSpanElement | null} */ (null));
  // Pinned by a tap, or shown while the pointer or the focus is there.
  const [open, setOpen] = useState(false);

  useEffect(() => {
    if (!open) return undefined;
    // In the top layer no box that scrolls cuts it off; an old browser leaves it where it stands.
    meaning.current?.showPopover?.();
    place(word.current, meaning.current);
    /** @param {Event} event */
    const leave = (event) => {
      if (event.type === "keydown") {
        if (/** @type {KeyboardEvent} */ (event).key !== "Escape") return;
        // Escape closes the meaning, and nothing behind it.
        event.preventDefault();
        event.stopPropagation();
      }
      const inside = word.current?.parentElement?.contains(/** @type {Node} */ (event.target));
      if (event.type === "pointerdown" && inside) return;
      setOpen(false);
    };
    // Captured: what lies behind must not act on the key, and any box may scroll.
    const kinds = ["keydown", "pointerdown", "scroll", "resize"];
    kinds.forEach((kind) => addEventListener(kind, leave, true));
    return () => {
      kinds.forEach((kind) => removeEventListener(kind, leave, true));
      meaning.current?.hidePopover?.();
    };
  }, [open]);

  /** @param {PointerEvent} event */
  const byMouse = (event) => event.pointerType === "mouse";
  return (
    <span
      class="term"
      onPointerEnter={(event) => byMouse(event) && setOpen(true)}
      onPointerLeave={(event) =>
        byMouse(event) && word.current !== document.activeElement && setOpen(false)
      }
    >
      <button
        type="button"
        ref={word}
        aria-describedby={id}
        onFocus={() => setOpen(true)}
        onBlur={() => setOpen(false)}
        onClick={() => setOpen(true)}
      >
        {children ?? name}
      </button>
      <span
        id={id}
        role="tooltip"
        popover="manual"
        ref={meaning}
        class={open ? "meaning open" : "meaning"}
      >
        {TERMS[name]}
      </span>
    </span>
  );
}

/**
 * Put a meaning below its word, or above it where there is more room, inside of the page.
 * @param {HTMLElement | null} word
 * @param {HTMLElement | null} meaning
 */
function place(word, meaning) {
  if (!word || !meaning) return;
  const at = word.getBoundingClientRect();
  const { width, height } = meaning.getBoundingClientRect();
  const { clientWidth, clientHeight } = document.documentElement;
  const left = Math.max(GAP, Math.min(at.left, clientWidth - width - GAP));
  const isBelow = at.bottom + height + GAP <= clientHeight || at.top < height + GAP;
  meaning.style.left = `${left}px`;
  meaning.style.top = `${isBelow ? at.bottom : at.top - height}px`;
}
