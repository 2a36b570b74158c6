/** The lessons on worked examples, whose numbers a hand can check; the last ends with a model. */

import { full, percent, short, sum } from "../parts/numbers.js";
import { Term } from "../parts/term.jsx";
import { Figure, stepOf } from "./facts.jsx";
import {
  ALIKE,
  FIRST,
  MOST,
  NOTHING,
  OPPOSITE,
  SAME,
  TAKEN,
  UNDIVIDED,
  WINNER,
} from "./tries_by_hand.jsx";

/** @type {import("./lessons.js").RunSource} */
const JOURNEY = { example: "journey" };

/** @type {import("./lessons.js").RunSource} */
export const MONEY = { text: "The money is in the bank.", kind: "translator" };

/**
 * Return the state of a caption that shows a step of the walk.
 * @type {(step: string, place: StateChange) => StateChange}
 */
const walk = (step, place) => ({ screen: "walk", walk: { step }, ...place });

/**
 * Return the request for every step of one query of a worked example.
 * @type {(l: number, i: number) => import("./facts.jsx").Needs}
 */
const traced =
  (l, i) =>
  ({ run }) => ({
    trace: { path: `runs/${run.run}/trace`, query: { l, h: 0, i } },
  });

/**
 * Return numbers as a caption writes them.
 * @type {(numbers: number[] | null | undefined, length: number, write?: (x: number) => string) =>
 *   any}
 */
const figures = (numbers, length, write = short) =>
  Array.from({ length }, (_, at) => (
    <>
      {at > 0 && ", "}
      <Figure>{numbers && write(numbers[at])}</Figure>
    </>
  ));

/**
 * Return two numbers as a caption writes them: 112 and 96.
 * @type {(numbers: number[] | null | undefined, write: (x: number) => string, between?: string) =>
 *   any}
 */
const pairOf = (numbers, write, between = "and") => (
  <>
    <Figure>{numbers && write(numbers[0])}</Figure> {between}{" "}
    <Figure>{numbers && write(numbers[1])}</Figure>
  </>
);

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
            The aim is a new vector for it, its{" "}
            <b>
              <Term name="context" />
            </b>
            : one that also holds something of the other five words.
          </>
        ),
        at: walk("embedding", { layer: 0, head: 0, query: 1 }),
      },
      {
        say: (
          <>
            How well does each word fit journey? Multiply their numbers one by one and add up: the{" "}
            <b>
              <Term name="dot product" />
            </b>
            . A high score means that both are large in the same places. Choose a row to see its
            three products.
          </>
        ),
        at: walk("scores", { layer: 0, head: 0, query: 1, key: 3 }),
        attempt: ALIKE,
      },
      {
        say: (
          <>
            Scores become <b>weights</b>, shares that sum to 1. <Term name="softmax">Softmax</Term>{" "}
            takes e to the power of every score and divides by the sum, so that large scores stand
            out and no share is negative.
          </>
        ),
        at: walk("softmax", { layer: 0, head: 0, query: 1, key: 1 }),
      },
      {
        needs: traced(0, 1),
        say: ({ trace }) => (
          <>
            The context: every word’s vector times its weight, all added up. Journey’s becomes{" "}
            {figures(trace?.context, 3)}.
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
        attempt: OPPOSITE,
      },
    ],
  },
  {
    name: "qkv",
    title: "Queries, keys, values",
    teaser: "Three matrices decide what a word looks for, and what it offers.",
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
            The <Term name="query" /> of journey is compared with every key: again a dot product,
            but of what was learnt, no longer of the words themselves.
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
        attempt: MOST,
      },
      {
        needs: traced(1, 1),
        say: ({ trace }) => (
          <>
            The weights mix the <b class="v">values</b>: the context of journey is{" "}
            {figures(trace?.context, 2)}. This is <b>scaled dot-product attention</b>, softmax(q·k /
            √d) v.
          </>
        ),
        at: walk("sum", { layer: 1, head: 0, query: 1 }),
        attempt: NOTHING,
      },
    ],
  },
  {
    name: "scale",
    title: "Why √d",
    teaser: "Without dividing, one key takes nearly everything, and little is learnt.",
    run: { example: "thinking-machines" },
    captions: [
      {
        needs: traced(0, 0),
        say: ({ trace, run }) => (
          <>
            A query and two keys of {run?.attentions[0].d_k ?? 64} features each. The scores are{" "}
            {pairOf(stepOf(trace, "scores"), full)}: sums of {run?.attentions[0].d_k ?? 64} products
            become large.
          </>
        ),
        at: walk("scores", { layer: 0, head: 0, query: 0 }),
      },
      {
        needs: traced(0, 0),
        say: ({ trace, run }) => (
          <>
            Divided by √{run?.attentions[0].d_k ?? 64} they are{" "}
            {pairOf(stepOf(trace, "scaled"), full)}, and <Term name="softmax" /> shares{" "}
            {pairOf(stepOf(trace, "weights"), (x) => short(x, 2), "to")}.
          </>
        ),
        at: walk("softmax", { layer: 0, head: 0, query: 0 }),
        attempt: UNDIVIDED,
      },
      {
        needs: (place) => ({
          ...traced(0, 0)(place),
          edited: {
            path: `runs/${place.run.run}/whatif`,
            query: { l: 0, h: 0, i: 0, edits: "scale" },
          },
        }),
        say: ({ trace, edited }) => (
          <>
            What if they are not divided? Of {pairOf(stepOf(trace, "scores"), full)}, softmax makes{" "}
            {pairOf(edited?.after, full)}:{" "}
            {edited && edited.after[1] < 1e-3 ? "the second word is gone" : "see the second word"}.
          </>
        ),
        at: walk("softmax", { layer: 0, head: 0, query: 0, edits: "scale" }),
      },
      {
        needs: ({ state }) => ({ spread: { path: "variance", query: { d: state.features } } }),
        say: ({ spread }) => (
          <>
            Is that always so? Here are random queries and keys. With <b>4</b> features, q·k stays
            small: its <Term name="variance" /> is{" "}
            <Figure>{spread?.d === 4 ? short(spread.dot.variance, 3) : null}</Figure>. Both
            histograms look alike.
          </>
        ),
        at: { screen: "variance", features: 4 },
      },
      {
        needs: () => ({ spread: { path: "variance", query: { d: 512 } } }),
        say: ({ spread }) => (
          <>
            With <b>512</b> features, q·k is spread over √512 ≈{" "}
            <Figure>{spread && String(Math.round(Math.sqrt(spread.d)))}</Figure> times the width.
            Softmax gives the largest of eight keys{" "}
            <Figure>{spread && percent(spread.dot.largest)}</Figure> on average, and its{" "}
            <Term name="gradient" /> falls from{" "}
            <Figure>{spread && short(spread.divided.gradient, 2)}</Figure> to{" "}
            <Figure>{spread && short(spread.dot.gradient, 2)}</Figure>: little is learnt. Divided by
            √d, nearly nothing has changed.
          </>
        ),
        at: { screen: "variance", features: 512 },
        attempt: WINNER,
      },
    ],
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
            The{" "}
            <b>
              <Term name="mask" />
            </b>{" "}
            replaces the score of every later word by −∞. Masked cells are hatched everywhere on
            this page.
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
        attempt: FIRST,
      },
      {
        needs: traced(1, 1),
        say: ({ trace }) => (
          <>
            What if there were no mask? The four later words take{" "}
            <Figure>{trace && percent(sum((stepOf(trace, "weights") ?? []).slice(2)))}</Figure> at
            once, and the others get less.
          </>
        ),
        at: walk("softmax", { layer: 2, head: 0, query: 1, edits: "mask" }),
      },
      {
        say: (
          <>All six queries: a triangle. The first word sees itself alone, the last one sees all.</>
        ),
        at: { screen: "alignment", layer: 2, head: 0, alignment: { word: 1, weightsOf: "head" } },
        attempt: TAKEN,
      },
    ],
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
        needs: traced(0, 1),
        say: ({ trace }) => (
          <>
            Why it moves: the context of bank is a mixture,{" "}
            <Figure>{trace && percent(stepOf(trace, "weights")?.[0] ?? NaN)}</Figure> money and{" "}
            <Figure>{trace && percent(stepOf(trace, "weights")?.[1] ?? NaN)}</Figure> bank.
          </>
        ),
        at: walk("sum", { layer: 0, head: 0, query: 1 }),
        attempt: SAME,
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
  },
];
