/** The answer as words, of which one or several neighbours are chosen. */
import { useEffect, useRef, useState } from "preact/hooks";
import { clamp, count } from "../../parts/numbers.js";
import { visible } from "../../parts/text.js";

/**
 * The words of the answer: a click chooses one; with Shift, a click or an arrow key chooses
 * several.
 * @param {{asked: AnswerOfRun, first: number, end: number, choose: (span: number[]) => void, next:
 *   boolean}} props `next` is whether the last token is one that the model has not read: what it
 *   would write next
 */
export function AnswerPicker({ asked, first, end, choose, next }) {
  const words = wordsOf(asked);
  const list = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [anchor, setAnchor] = useState(/** @type {number | null} */ (null));
  const chosen = words
    .filter((word) => word.start < end && word.stop > first)
    .map((word) => word.at);
  const low = chosen[0] ?? 0;
  const high = chosen.at(-1) ?? 0;
  useEffect(() => {
    const button = list.current?.querySelector("[aria-pressed=true]");
    if (!list.current || !button) return;
    const all = list.current.getBoundingClientRect();
    const one = button.getBoundingClientRect();
    if (one.top < all.top || one.bottom > all.bottom)
      list.current.scrollTop += one.top - all.top - (all.height - one.height) / 2;
  }, [first, asked]);
  /** @type {(a: number, b: number) => void} */
  const select = (a, b) => choose([words[Math.min(a, b)].start, words[Math.max(a, b)].stop]);
  /** @param {KeyboardEvent & {currentTarget: HTMLElement}} event */
  const pressKey = (event) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const from = anchor ?? low;
    const moving = event.shiftKey ? (from === low ? high : low) : step > 0 ? high : low;
    const to = clamp(moving + step, 0, words.length - 1);
    setAnchor(event.shiftKey ? from : to);
    select(event.shiftKey ? from : to, to);
    /** @type {NodeListOf<HTMLElement>} */ (event.currentTarget.querySelectorAll("[aria-pressed]"))[
      to
    ]?.focus();
  };
  /** @type {(at: number, event: PointerEvent | MouseEvent) => void} */
  const press = (at, event) => {
    if (event.shiftKey && anchor !== null) return select(anchor, at);
    setAnchor(at);
    return select(at, at);
  };
  const before = asked.start - asked.begins;
  const after = asked.ends - asked.start - asked.tokens.length;
  return (
    <>
      <div
        class="words answer-words"
        role="group"
        aria-label="the answer: arrow keys go from word to word, with Shift they choose several"
        ref={list}
        onKeyDown={pressKey}
      >
        {before > 0 && (
          <button
            type="button"
            class="soft"
            aria-label={`the ${count(before)} tokens before`}
            onClick={() => choose([asked.start - 1, asked.start])}
          >
            …
          </button>
        )}
        {words.map((word) => (
          <button
            type="button"
            key={word.start}
            aria-pressed={chosen.includes(word.at)}
            tabindex={word.at === low ? 0 : -1}
            class={next && word.stop === asked.ends ? "unread" : ""}
            title={next && word.stop === asked.ends ? "not read: the likeliest next word" : ""}
            onClick={(/** @type {MouseEvent} */ event) => press(word.at, event)}
            onPointerEnter={(/** @type {PointerEvent} */ event) =>
              event.buttons === 1 &&
              event.pointerType === "mouse" &&
              anchor !== null &&
              select(anchor, word.at)
            }
            onPointerDown={(/** @type {PointerEvent} */ event) =>
              !event.shiftKey && setAnchor(word.at)
            }
          >
            {visible(word.text.trim())}
          </button>
        ))}
        {after > 0 && (
          <button
            type="button"
            class="soft"
            aria-label={`the ${count(after)} tokens after`}
            onClick={() =>
              choose([asked.start + asked.tokens.length, asked.start + asked.tokens.length + 1])
            }
          >
            …
          </button>
        )}
      </div>
      <div class="row spread-words">
        <button
          type="button"
          class="button small"
          disabled={low === 0}
          onClick={() => select(low - 1, high)}
        >
          + the word before
        </button>
        <button
          type="button"
          class="button small"
          disabled={high >= words.length - 1}
          onClick={() => select(low, high + 1)}
        >
          + the word after
        </button>
        {asked.across && (
          <button type="button" class="button small" onClick={() => select(0, lastOfText(words))}>
            the whole answer
          </button>
        )}
      </div>
    </>
  );
}

/** @typedef {{at: number, start: number, stop: number, text: string}} AnswerWord */

/** Return the words of the tokens that are shown. @param {AnswerOfRun} asked */
function wordsOf({ tokens, words, start }) {
  /** @type {AnswerWord[]} */
  const found = [];
  tokens.forEach((token, at) => {
    const last = found.at(-1);
    if (last && words[at] === words[at - 1])
      Object.assign(last, { stop: start + at + 1, text: last.text + token });
    else found.push({ at: found.length, start: start + at, stop: start + at + 1, text: token });
  });
  return found;
}

/** Return the last word that is not a special token such as </s>. @param {AnswerWord[]} words */
const lastOfText = (words) => {
  const at = words.findLastIndex((word) => !/^<.*>$/.test(word.text.trim()));
  return at < 0 ? words.length - 1 : at;
};
