/** Token text as a reader can see it: what has no shape of its own, or would turn the line around, is written out. */

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

const written = (character) => {
  const code = character.charCodeAt(0);
  if (character === "\n") return "↵";
  if (character === "\t") return "⇥";
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
};

export function visible(text) {
  const shown = String(text ?? "").replace(HIDDEN, written);
  return shown.trim() === "" ? "␣".repeat(Math.max(1, shown.length)) : shown;
}

/** At most so many characters, so that a label has a place. */
export function clipped(text, length) {
  const characters = [...visible(text)];
  return characters.length <= length ? characters.join("") : `${characters.slice(0, length - 1).join("")}…`;
}
