/**
 * The eight cards of the landing: each is a sequence of captions, and each caption opens a state of
 * the screens.
 */

/**
 * @typedef {{example: string} | {text: string, kind: "translator" | "gpt"}} RunSource  an example,
 *   or a text for a model
 * @typedef {{say: any, at: StateChange, run?: RunSource}} Caption  `run` where it differs from the
 *   card's
 * @typedef {{name: string, title: string, teaser: string, run: RunSource, captions: Caption[],
 *   attempt: any}} Lesson `attempt` is one thing to try at the end
 */

const JOURNEY = { example: "journey" };
/** @type {RunSource} */
const AMBIGUOUS = { text: "The man saw the astronomer with a telescope", kind: "translator" };
/** @type {RunSource} */
const MONEY = { text: "The money is in the bank.", kind: "translator" };

/** @type {Lesson[]} */
export const LESSONS = [
  {
    name: "journey",
    title: "Journey",
    teaser: "Attention without any weights: six words, three numbers each.",
    run: JOURNEY,
    captions: [
      {
        say: (
          <>
            Six words, and for each a vector of three numbers. We follow <b class="q">journey</b>.
            The aim is a new vector for it, its <b>context</b>: one that also holds something of the
            other five words.
          </>
        ),
        at: { screen: "walk", layer: 0, head: 0, query: 1, walk: { step: "embedding" } },
      },
      {
        say: (
          <>
            How similar is each word to journey? Multiply their numbers one by one and add up: the{" "}
            <b>dot product</b>. A high score means similar. Point at a row to see its three
            products.
          </>
        ),
        at: { screen: "walk", layer: 0, head: 0, query: 1, key: 2, walk: { step: "scores" } },
      },
      {
        say: (
          <>
            Scores become <b>weights</b>, shares that sum to 1. Softmax takes e to the power of
            every score and divides by the sum, so that large scores stand out and no share is
            negative.
          </>
        ),
        at: { screen: "walk", layer: 0, head: 0, query: 1, key: 1, walk: { step: "softmax" } },
      },
      {
        say: (
          <>
            The context: every word’s vector times its weight, all added up. Journey’s becomes
            0.4419, 0.6515, 0.5683.
          </>
        ),
        at: { screen: "walk", layer: 0, head: 0, query: 1, walk: { step: "sum" } },
      },
      {
        say: (
          <>
            The same for all six words at once: 6 × 6 weights. Every row is one query, and sums to
            1. <b>Two steps and a sum: that is all of attention.</b>
          </>
        ),
        at: { screen: "alignment", layer: 0, head: 0, alignment: { word: 1, weightsOf: "head" } },
      },
    ],
    attempt: (
      <>
        Go back to the first caption and change the numbers of <i>starts</i> to −0.57, −0.85, −0.64:
        the opposite of journey. What happens to its weight?
      </>
    ),
  },
  {
    name: "qkv",
    title: "Queries, keys, values",
    teaser: "Three learnt matrices decide what a word looks for, and what it offers.",
    run: JOURNEY,
    captions: [
      {
        say: (
          <>
            The same six words, now with three matrices: W<sub>q</sub>, W<sub>k</sub> and W
            <sub>v</sub>. In a model they are learnt; here they are small enough to read.
          </>
        ),
        at: { screen: "walk", layer: 1, head: 0, query: 1, walk: { step: "embedding" } },
      },
      {
        say: (
          <>
            They turn every word into a <b class="q">query</b> (what it looks for, as in a search),
            a <b class="k">key</b> (what it is found by) and a <b class="v">value</b> (what it
            passes on), two numbers each.
          </>
        ),
        at: { screen: "walk", layer: 1, head: 0, query: 1, walk: { step: "qkv" } },
      },
      {
        say: (
          <>
            The query of journey is compared with every key: again a dot product, but of what was
            learnt, no longer of the words themselves.
          </>
        ),
        at: { screen: "walk", layer: 1, head: 0, query: 1, key: 1, walk: { step: "scores" } },
      },
      {
        say: (
          <>
            Divided by √2, because keys have two numbers (the card <i>Why √d</i> says why), and
            turned into weights.
          </>
        ),
        at: { screen: "walk", layer: 1, head: 0, query: 1, walk: { step: "softmax" } },
      },
      {
        say: (
          <>
            The weights mix the <b class="v">values</b>: the context of journey is 0.3061, 0.8210.
            This is <b>scaled dot-product attention</b>, softmax(q·k / √d) v.
          </>
        ),
        at: { screen: "walk", layer: 1, head: 0, query: 1, walk: { step: "sum" } },
      },
    ],
    attempt: (
      <>
        Go back to the first caption and set all of W<sub>q</sub> to 0. What does a query that looks
        for nothing get?
      </>
    ),
  },
  {
    name: "scale",
    title: "Why √d",
    teaser: "Without dividing, one key takes everything and learning stops.",
    run: { example: "thinking-machines" },
    captions: [
      {
        say: (
          <>
            A query and two keys of 64 features each. The scores are 112 and 96: sums of 64 products
            become large.
          </>
        ),
        at: { screen: "walk", layer: 0, head: 0, query: 0, walk: { step: "scores" } },
      },
      {
        say: "Divided by √64 = 8 they are 14 and 12, and softmax shares 0.88 to 0.12.",
        at: { screen: "walk", layer: 0, head: 0, query: 0, walk: { step: "softmax" } },
      },
      {
        say: (
          <>
            What if they are not divided? Of 112 and 96, softmax makes 0.9999999 and 0.0000001: the
            second word is gone.
          </>
        ),
        at: {
          screen: "walk",
          layer: 0,
          head: 0,
          query: 0,
          edits: "scale",
          walk: { step: "softmax" },
        },
      },
      {
        say: (
          <>
            Is that always so? Here are random queries and keys. With <b>4</b> features, q·k stays
            small. Both histograms look alike.
          </>
        ),
        at: { screen: "variance", features: 4 },
      },
      {
        say: (
          <>
            With <b>512</b> features, q·k is spread over √512 ≈ 23 times the width. Softmax now
            gives everything to one key, and its gradient vanishes: nothing is learnt. Divided by
            √d, nothing has changed.
          </>
        ),
        at: { screen: "variance", features: 512 },
      },
    ],
    attempt: (
      <>
        Move the slider from 1 to 512 and watch both rows of weights. From which d on does one key
        win?
      </>
    ),
  },
  {
    name: "mask",
    title: "Mask",
    teaser: "A model that writes must not look ahead.",
    run: JOURNEY,
    captions: [
      {
        say: (
          <>
            A decoder writes word by word. When it is at <b class="q">journey</b>, the next words do
            not exist yet. Here are the scores of journey with all six words.
          </>
        ),
        at: { screen: "walk", layer: 2, head: 0, query: 1, walk: { step: "scaled" } },
      },
      {
        say: (
          <>
            The <b>mask</b> replaces the score of every later word by −∞. Masked cells are hatched
            everywhere on this page.
          </>
        ),
        at: { screen: "walk", layer: 2, head: 0, query: 1, walk: { step: "mask" } },
      },
      {
        say: (
          <>
            e to the power of −∞ is 0: softmax gives later words exactly nothing, and what is left
            still sums to 1.
          </>
        ),
        at: { screen: "walk", layer: 2, head: 0, query: 1, walk: { step: "softmax" } },
      },
      {
        say: (
          <>
            What if there were no mask? Later words take their share at once, and the others get
            less.
          </>
        ),
        at: {
          screen: "walk",
          layer: 2,
          head: 0,
          query: 1,
          edits: "mask",
          walk: { step: "softmax" },
        },
      },
      {
        say: (
          <>All six queries: a triangle. The first word sees itself alone, the last one sees all.</>
        ),
        at: { screen: "alignment", layer: 2, head: 0, alignment: { word: 1, weightsOf: "head" } },
      },
    ],
    attempt: (
      <>
        Choose the word <i>step</i>, the last: how much does the mask take from it? And from{" "}
        <i>Your</i>?
      </>
    ),
  },
  {
    name: "bank",
    title: "Money and bank",
    teaser: "Context moves a vector: one word, two meanings.",
    run: { example: "bank" },
    captions: [
      {
        say: (
          <>
            <b>bank</b> twice: beside <b>money</b>, and beside <b>river</b>. Before attention it is
            the same vector in both: its two points lie on top of each other.
          </>
        ),
        at: { screen: "geometry", layer: 0, query: 1, key: 0, geometry: { progress: 0 } },
      },
      {
        say: (
          <>
            After attention each bank has moved towards its neighbour. The word is the same, its
            vector no longer: attention is aware of the context. Press play to see it again.
          </>
        ),
        at: { screen: "geometry", layer: 0, query: 1, key: 0, geometry: { progress: 1 } },
      },
      {
        say: (
          <>
            Why it moves: the context of bank is a mixture, and money takes part in it with its
            weight.
          </>
        ),
        at: { screen: "walk", layer: 0, head: 0, query: 1, walk: { step: "sum" } },
      },
      {
        say: (
          <>
            The same in a translator that has learnt from sentences: which words does it look at
            when it writes <b>Bank</b>?
          </>
        ),
        at: { screen: "alignment" },
        run: MONEY,
      },
    ],
    attempt: (
      <>
        Go back to the third caption, choose the step <i>inputs</i>, and give bank the vector 2, 0,
        0, that of money. Does it still move?
      </>
    ),
  },
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

/** @param {string | null} name */
export const findLesson = (name) => LESSONS.find((lesson) => lesson.name === name);
