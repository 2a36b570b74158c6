/** The lessons that end with a model: several heads, a translation, the next word. */
import { MONEY } from "./by_hand.jsx";

/** @type {import("./lessons.js").RunSource} */
const AMBIGUOUS = { text: "The man saw the astronomer with a telescope", kind: "translator" };

/** @type {import("./lessons.js").Lesson[]} */
export const BY_MODEL = [
  {
    name: "heads",
    title: "Two heads",
    teaser: "Several heads look at one word from several sides.",
    run: { example: "telescope" },
    captions: [
      {
        say: (
          <>
            “The man saw the astronomer with a telescope.” Who had it? One attention can only give
            one answer. These <b>two heads</b> are made by hand: from <b class="q">telescope</b>, A
            looks at the man, B at the astronomer.
          </>
        ),
        at: {
          screen: "heads",
          layer: 0,
          head: 0,
          query: 7,
          heads: { layerA: 0, headA: 0, layerB: 0, headB: 1 },
        },
      },
      {
        say: (
          <>
            A head is its own W<sub>q</sub>, W<sub>k</sub> and W<sub>v</sub>. With the W<sub>q</sub>{" "}
            of head A, the query of telescope fits the key of <b class="k">man</b> best.
          </>
        ),
        at: { screen: "walk", layer: 0, head: 0, query: 7, walk: { step: "scores" } },
      },
      {
        say: (
          <>
            In head B only W<sub>q</sub> differs: the same word asks for another one, and the keys,
            which are the same, give other scores.
          </>
        ),
        at: { screen: "walk", layer: 0, head: 1, query: 7, walk: { step: "scores" } },
      },
      {
        say: (
          <>
            A translator has learnt the same sentence’s heads from data. These two differ most in
            what <b class="q">telescope</b> looks at. Perspectives, not a decision: no single head
            says who had the telescope.
          </>
        ),
        at: { screen: "heads" },
        run: AMBIGUOUS,
      },
      {
        say: (
          <>
            What if head A is <b>mute</b>? The model runs again without it: below the fans are the
            words that it wrote, each with its probability before and after. One head is seldom
            missed: others see what it saw.
          </>
        ),
        at: { screen: "heads", edits: "mute" },
        run: AMBIGUOUS,
      },
    ],
    attempt: "Choose other words as the query. For which do all heads agree?",
  },
  {
    name: "translate",
    title: "Translate",
    teaser: "A whole Transformer at work: which words it reads while it writes.",
    run: MONEY,
    captions: [
      {
        say: (
          <>
            An encoder has read the sentence, a decoder has written the German one below it. Both
            are drawn above: every box is one attention that you can open.
          </>
        ),
        at: { screen: "output", layer: null },
      },
      {
        say: (
          <>
            While it wrote a word below, it looked at the words above it. <b>Bank</b> comes from{" "}
            <b>bank</b>, <b>Geld</b> from <b>money</b>: nobody told it so.
          </>
        ),
        at: { screen: "alignment" },
      },
      {
        say: (
          <>
            This is <b>encoder–decoder attention</b>: the query comes from the German side, keys and
            values from the English side.
          </>
        ),
        at: { screen: "walk", kind: "cross", walk: { step: "softmax" } },
      },
      {
        say: (
          <>
            The encoder reads the sentence with several heads in several layers. Every square is one
            head: rows are queries, columns keys; the stronger the colour, the larger the weight.
          </>
        ),
        at: { screen: "heads", kind: "encoder" },
      },
    ],
    attempt:
      "Type a sentence of your own at the top. Click a German word: where does it come from?",
  },
  {
    name: "next",
    title: "Next word",
    teaser: "A GPT guesses what follows, and writes on.",
    run: { text: "To be, or not to", kind: "gpt" },
    captions: [
      {
        say: (
          <>
            A GPT has read these words and gives every token of its vocabulary a probability of
            being next. These are the ten likeliest.
          </>
        ),
        at: { screen: "output" },
      },
      {
        say: (
          <>
            A low <b>temperature</b> makes likely words likelier, a high one makes the choice more
            even. Append a word, and the model guesses again.
          </>
        ),
        at: { screen: "output", output: { temperature: 0.5 } },
      },
      {
        say: (
          <>
            How it got there: the last word looks back at the words before it. It cannot look ahead,
            so the upper right of every head is hatched.
          </>
        ),
        at: { screen: "heads" },
      },
      {
        say: "One of these heads, step by step, for the last word.",
        at: { screen: "walk", walk: { step: "softmax" } },
      },
    ],
    attempt:
      "Append five words at temperature 0.1, and five at temperature 2. Which is Shakespeare?",
  },
];
