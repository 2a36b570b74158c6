/**
 * Token text made visible: characters without a shape, or that would change the writing direction,
 * are spelled out.
 */

/** Control characters, soft hyphens, marks of direction, spaces without a width, annotations. */
const HIDDEN = new RegExp(
  "[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e" +
    "\u2060-\u206f\ufeff\ufff9-\ufffb]",
  "g",
);

/** Return what stands for a character without a shape. @param {string} character */
const spelled = (character) => {
  const code = character.charCodeAt(0);
  if (character === "\n") return "↵";
  if (character === "\t") return "⇥";
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
};

/**
 * Return a text with its hidden characters spelled out; blank text becomes ␣.
 * @param {string | null | undefined} text
 */
export function visible(text) {
  const shown = String(text ?? "").replace(HIDDEN, spelled);
  return shown.trim() === "" ? "␣".repeat(Math.max(1, shown.length)) : shown;
}

/**
 * Return a text with its line breaks as they are, and other hidden characters spelled out; blank
 * text becomes ␣.
 * @param {string} text
 */
export const visibleLines = (text) =>
  text.trim() === ""
    ? visible(text)
    : text
        .split("\n")
        .map((line) => (line.trim() === "" ? line : visible(line)))
        .join("\n");

/**
 * Return a reason of the API, which has no capital and no full stop, as a sentence.
 * @param {string} why
 */
export const asSentence = (why) => `${why[0].toUpperCase()}${why.slice(1)}.`;

/**
 * Return a visible text of at most `length` characters, with … at the end if it is cut.
 * @param {string} text
 * @param {number} length
 */
export function clipped(text, length) {
  const characters = [...visible(text)];
  return characters.length <= length
    ? characters.join("")
    : `${characters.slice(0, length - 1).join("")}…`;
}
