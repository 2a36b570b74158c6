/** The theme: light or dark, as the surroundings are, until the reader chooses. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

/**
 * Return whether the surroundings are dark: the nearest opaque background, as in a notebook, else
 * the system's setting.
 * @param {HTMLElement} root
 */
function isDark(root) {
  for (let element = root.parentElement; element; element = element.parentElement) {
    const channels = getComputedStyle(element).backgroundColor.match(/[\d.]+/g) ?? [0, 0, 0, 0];
    const [r, g, b, opacity = 1] = channels.map(Number);
    if (opacity > 0.5) return 0.3 * r + 0.6 * g + 0.1 * b < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

const THEME_KEY = "telescope-theme";

/** Return the theme that the reader chose on an earlier visit. @returns {Theme | null} */
const storedTheme = () => {
  try {
    return /** @type {Theme | null} */ (localStorage.getItem(THEME_KEY));
  } catch {
    return null; // a file opened from disk may have no storage
  }
};

/**
 * Return the theme and the function that toggles it; until the reader chooses, it follows the
 * surroundings.
 * @param {HTMLElement} root
 */
export function useTheme(root) {
  const chosen = useRef(/** @type {Theme | null | undefined} */ (undefined));
  if (chosen.current === undefined) chosen.current = storedTheme();
  /** @returns {Theme} */
  const currentTheme = () => chosen.current ?? (isDark(root) ? "dark" : "light");
  const [theme, setTheme] = useState(currentTheme);
  useEffect(() => {
    const update = () => setTheme(currentTheme());
    const system = matchMedia("(prefers-color-scheme: dark)");
    // a notebook's colours change a little later
    const attributes = new MutationObserver(() => setTimeout(update, 200));
    const size = new ResizeObserver(update); // a notebook inserts the cell after it was made
    system.addEventListener("change", update);
    attributes.observe(document.body, { attributes: true });
    size.observe(root);
    return () => {
      system.removeEventListener("change", update);
      attributes.disconnect();
      size.disconnect();
    };
  }, []);
  root.dataset.theme = theme;
  const toggle = useCallback(() => {
    const next = currentTheme() === "dark" ? "light" : "dark";
    chosen.current = next;
    try {
      localStorage.setItem(THEME_KEY, next);
    } catch {
      // without storage the choice lasts as long as the page
    }
    setTheme(next);
  }, []);
  return /** @type {const} */ ([theme, toggle]);
}
