/** Keys that work wherever the focus is, except where one types. */
import { useEffect } from "../ui.js";

/** @param {(event: KeyboardEvent) => boolean} pressed  says whether the key meant something */
export function useKeys(root, pressed) {
  useEffect(() => {
    const key = (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.target.closest?.("dialog")) return;
      if (pressed(event)) event.preventDefault();
    };
    const where = root.id === "telescope" ? document : root; // in a notebook, only the keys that are meant for this cell
    where.addEventListener("keydown", key);
    return () => where.removeEventListener("keydown", key);
  });
}
