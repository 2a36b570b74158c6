/** The lessons on worked examples, whose numbers a hand can check; the last ends with a model. */

/** @type {import("./lessons.js").RunSource} */
const JOURNEY = { example: "journey" };

/** @type {import("./lessons.js").RunSource} */
export const MONEY = { text: "The money is in the bank.", kind: "translator" };

/**
 * Return the state of a caption that shows a step of the walk.
 * @type {(step: string, place: StateChange) => StateChange}
 */
const walk = (step, place) => ({ screen: "walk", walk: { step }, ...place });

/** @type {import("./lessons.js").Lesson[]} */
export const BY_HAND = [
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
        at: walk("embedding", { layer: 0, head: 0, query: 1 }),
      },
      {
        say: (
          <>
            How similar is each word to journey? Multiply their numbers one by one and add up: the{" "}
            <b>dot product</b>. A high score means similar. Point at a row to see its three
            products.
          </>
        ),
        at: walk("scores", { layer: 0, head: 0, query: 1, key: 2 }),
      },
      {
        say: (
          <>
            Scores become <b>weights</b>, shares that sum to 1. Softmax takes e to the power of
            every score and divides by the sum, so that large scores stand out and no share is
            negative.
          </>
        ),
        at: walk("softmax", { layer: 0, head: 0, query: 1, key: 1 }),
      },
      {
        say: (
          <>
            The context: every word’s vector times its weight, all added up. Journey’s becomes
            0.4419, 0.6515, 0.5683.
          </>
        ),
        at: walk("sum", { layer: 0, head: 0, query: 1 }),
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
        at: walk("embedding", { layer: 1, head: 0, query: 1 }),
      },
      {
        say: (
          <>
            They turn every word into a <b class="q">query</b> (what it looks for, as in a search),
            a <b class="k">key</b> (what it is found by) and a <b class="v">value</b> (what it
            passes on), two numbers each.
          </>
        ),
        at: walk("qkv", { layer: 1, head: 0, query: 1 }),
      },
      {
        say: (
          <>
            The query of journey is compared with every key: again a dot product, but of what was
            learnt, no longer of the words themselves.
          </>
        ),
        at: walk("scores", { layer: 1, head: 0, query: 1, key: 1 }),
      },
      {
        say: (
          <>
            Divided by √2, because keys have two numbers (the card <i>Why √d</i> says why), and
            turned into weights.
          </>
        ),
        at: walk("softmax", { layer: 1, head: 0, query: 1 }),
      },
      {
        say: (
          <>
            The weights mix the <b class="v">values</b>: the context of journey is 0.3061, 0.8210.
            This is <b>scaled dot-product attention</b>, softmax(q·k / √d) v.
          </>
        ),
        at: walk("sum", { layer: 1, head: 0, query: 1 }),
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
        at: walk("scores", { layer: 0, head: 0, query: 0 }),
      },
      {
        say: "Divided by √64 = 8 they are 14 and 12, and softmax shares 0.88 to 0.12.",
        at: walk("softmax", { layer: 0, head: 0, query: 0 }),
      },
      {
        say: (
          <>
            What if they are not divided? Of 112 and 96, softmax makes 0.9999999 and 0.0000001: the
            second word is gone.
          </>
        ),
        at: walk("softmax", { layer: 0, head: 0, query: 0, edits: "scale" }),
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
        at: walk("scaled", { layer: 2, head: 0, query: 1 }),
      },
      {
        say: (
          <>
            The <b>mask</b> replaces the score of every later word by −∞. Masked cells are hatched
            everywhere on this page.
          </>
        ),
        at: walk("mask", { layer: 2, head: 0, query: 1 }),
      },
      {
        say: (
          <>
            e to the power of −∞ is 0: softmax gives later words exactly nothing, and what is left
            still sums to 1.
          </>
        ),
        at: walk("softmax", { layer: 2, head: 0, query: 1 }),
      },
      {
        say: (
          <>
            What if there were no mask? Later words take their share at once, and the others get
            less.
          </>
        ),
        at: walk("softmax", { layer: 2, head: 0, query: 1, edits: "mask" }),
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
        at: walk("sum", { layer: 0, head: 0, query: 1 }),
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
];
