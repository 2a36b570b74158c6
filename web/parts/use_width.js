/** The width of an element, measured again whenever it changes. */
import { useEffect, useRef, useState } from "preact/hooks";

/** Return a ref for the element, and its width in pixels, 0 before the first layout. */
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
