/**
 * The tokens of a sentence as buttons, one of them chosen. A token that continues a word is set
 * close to it.
 */
import { useEffect, useRef } from "preact/hooks";
import { clamp, count } from "./numbers.js";
import { specialProps } from "./special.jsx";
import { visible } from "./text.js";

/**
 * A long text shows one range of its tokens, with a button before and after it.
 * @param {{words: TokenRange, at: number, choose: (position: number) => void, label: string}} props
 */
export function WordPicker({ words: { tokens, start, n }, at, choose, label }) {
  const list = useRef(/** @type {HTMLDivElement | null} */ (null));
  const chosen = at - start;
  useEffect(() => {
    const button = list.current?.querySelector("[aria-pressed=true]");
    if (!list.current || !button) return;
    const all = list.current.getBoundingClientRect();
    const one = button.getBoundingClientRect();
    if (one.top < all.top || one.bottom > all.bottom)
      list.current.scrollTop += one.top - all.top - (all.height - one.height) / 2;
  }, [at, tokens]);
  /** @param {KeyboardEvent & {currentTarget: HTMLElement}} event */
  const pressKey = (event) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const next = clamp(at + step, 0, n - 1);
    choose(next);
    /** @type {NodeListOf<HTMLElement>} */ (event.currentTarget.querySelectorAll("[aria-pressed]"))[
      next - start
    ]?.focus();
  };
  /** @type {(position: number, name: string) => any} */
  const more = (position, name) => (
    <button
      type="button"
      class="soft"
      key={name}
      aria-label={name}
      title={name}
      onClick={() => choose(position)}
    >
      …
    </button>
  );
  return (
    <div class="words" role="group" aria-label={label} onKeyDown={pressKey} ref={list}>
      {start > 0 && more(start - 1, `the ${count(start)} before`)}
      {tokens.map((token, i) => (
        <button
          type="button"
          {...specialProps(token, token.startsWith("·") && token.length > 1 ? "piece" : "")}
          key={i}
          aria-pressed={i === chosen}
          tabindex={i === chosen ? 0 : -1}
          onClick={() => choose(start + i)}
        >
          {visible(token)}
        </button>
      ))}
      {start + tokens.length < n &&
        more(start + tokens.length, `the ${count(n - start - tokens.length)} after`)}
    </div>
  );
}
