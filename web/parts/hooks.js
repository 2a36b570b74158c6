/** Hooks that several screens use: keyboard shortcuts, and the width of an element. */
import { useEffect, useRef, useState } from "preact/hooks";

/**
 * Return whether a key belongs to the focused field: typed text, or a key that moves a slider.
 * @param {KeyboardEvent} event
 */
const belongsToField = (event) => {
  const { tagName, type } = /** @type {HTMLInputElement} */ (event.target);
  if (tagName === "INPUT")
    return !/^(range|checkbox)$/.test(type) || /^(Arrow|Home|End|Page| )/.test(event.key);
  return /^(SELECT|TEXTAREA)$/.test(tagName);
};

/**
 * Call `pressed` for every key; in a notebook, only for keys inside this cell.
 * @param {HTMLElement} root
 * @param {(event: KeyboardEvent) => boolean} pressed  returns whether the key was used
 */
export function useKeys(root, pressed) {
  useEffect(() => {
    const scope = root.id === "telescope" ? document : root;
    // A shortcut may remove the focused button; without a focus, a notebook would take the next
    // key.
    const keepFocus = () =>
      scope.contains(document.activeElement) || root.focus({ preventScroll: true });
    const listener = (/** @type {any} */ event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (belongsToField(event) || event.target.closest?.("dialog")) return;
      if (!pressed(event)) return;
      event.preventDefault();
      requestAnimationFrame(keepFocus);
    };
    scope.addEventListener("keydown", listener);
    return () => scope.removeEventListener("keydown", listener);
  });
}

/**
 * Return a ref for the element, and its width in pixels, 0 before the first layout; it follows
 * every change.
 */
export function useWidth() {
  const element = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(element.current?.clientWidth ?? 0));
    observer.observe(/** @type {HTMLElement} */ (element.current));
    return () => observer.disconnect();
  }, []);
  return /** @type {const} */ ([element, width]);
}
