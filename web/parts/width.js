/** How wide an element is, now and after every change. */
import { useEffect, useRef, useState } from "../ui.js";

export function useWidth() {
  const element = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const watching = new ResizeObserver(() => setWidth(element.current?.clientWidth ?? 0));
    watching.observe(element.current);
    return () => watching.disconnect();
  }, []);
  return [element, width];
}
