/** How long a text may be, said before it is sent: nothing is cut. */
import { count } from "./numbers.js";

/**
 * Return how many tokens a text has at least: every word is one or more.
 * @param {string} text
 */
const leastTokens = (text) => text.split(/\s+/u).filter(Boolean).length;

/**
 * Return whether a model cannot read a text at once, as far as that is known without its tokenizer.
 * @type {(text: string, models: ModelsAnswer | null, model: string | undefined) => boolean}
 */
export const isTooLong = (text, models, model) =>
  leastTokens(text) > (models?.limits?.[model ?? ""] ?? Infinity);

/**
 * What is said of a text that is too long, or may be.
 * @param {{text: string, models: ModelsAnswer | null, model: string | undefined}} props
 */
export function LengthNote({ text, models, model }) {
  const most = models?.limits?.[model ?? ""];
  const length = [...text.trim()].length;
  if (most === undefined || length <= most) return null;
  const least = leastTokens(text);
  return (
    <p class={least > most ? "too-long" : "soft"} role="status">
      {least > most ? (
        <>
          The text has {count(least)} words, and this model reads at most {count(most)} tokens at
          once: take {count(least - most)} or more words away.
        </>
      ) : (
        <>
          {count(length)} characters. This model reads at most {count(most)} tokens at once; a word
          is one or more. Nothing is cut: a text that is too long is refused.
        </>
      )}
    </p>
  );
}
