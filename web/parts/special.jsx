/**
 * Special tokens: those that are no part of a text. Word lists show them grey, with their meaning.
 */
const START = "the start of the text: a special token, no word of it";
const END =
  "the end of the text: a special token, no word of it. Heads rest here when nothing fits";
const PADDING = "filling: a special token that only makes texts equally long";
const UNKNOWN = "a piece that the vocabulary does not have: the model cannot tell what stood here";

/** What each special token means, by the names that the usual tokenizers give it. */
const MEANINGS = new Map(
  /** @type {[string, string[]][]} */ ([
    [START, ["<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"]],
    [END, ["</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|im_end|>"]],
    [PADDING, ["<pad>", "[PAD]", "<|pad|>"]],
    [UNKNOWN, ["<unk>", "[UNK]"]],
    ["between two texts: a special token, no word of either", ["<|endoftext|>"]],
    [
      "the whole text: a special token before it, whose vector stands for all of it",
      ["[CLS]", "<cls>"],
    ],
    [
      "the end of a part of the text: a special token. Heads rest here when nothing fits",
      ["[SEP]", "<sep>"],
    ],
    ["a hidden word: a special token, for which the model guesses", ["[MASK]", "<mask>"]],
  ]).flatMap(([meaning, names]) =>
    names.map((name) => /** @type {[string, string]} */ ([name, meaning])),
  ),
);

/**
 * Return what a special token means; undefined for a word of a text.
 * @param {string | null | undefined} token
 * @returns {string | undefined}
 */
export const specialMeaning = (token) => MEANINGS.get((token ?? "").trim());

/**
 * Return the attributes of an element that shows a token: a special one is grey, and says what it
 * means.
 * @param {string | null | undefined} token
 * @param {string} [others]  its other classes
 */
export const specialProps = (token, others = "") => {
  const meaning = specialMeaning(token);
  return { class: meaning ? `${others} special`.trim() : others, title: meaning };
};

/** The meaning of a special token inside of a drawing. @param {{of: string}} props */
export const SpecialTitle = ({ of }) => {
  const meaning = specialMeaning(of);
  return meaning ? <title>{meaning}</title> : null;
};
