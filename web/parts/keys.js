/** Keys that work wherever the focus is, except where one types. */
import { useEffect } from "../ui.js";

/** Meant for the field that has the focus: what is typed, and what moves a slider. */
const typed = ({ target, key }) =>
  /^(SELECT|TEXTAREA)$/.test(target.tagName) || (target.tagName === "INPUT" && (!/^(range|checkbox)$/.test(target.type) || /^(Arrow|Home|End|Page| )/.test(key)));

/** @param {(event: KeyboardEvent) => boolean} pressed  says whether the key meant something */
export function useKeys(root, pressed) {
  useEffect(() => {
    const where = root.id === "telescope" ? document : root; // in a notebook, only the keys that are meant for this cell
    const hold = () => where.contains(document.activeElement) || root.focus({ preventScroll: true }); // its button is gone
    const key = (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (typed(event) || event.target.closest?.("dialog")) return;
      if (!pressed(event)) return;
      event.preventDefault();
      requestAnimationFrame(hold);
    };
    where.addEventListener("keydown", key);
    return () => where.removeEventListener("keydown", key);
  });
}
