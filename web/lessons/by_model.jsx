/** The lessons that end with a model: several heads, a translation, the next word. */
import { headName } from "../parts/answered.jsx";
import { argmax, percent } from "../parts/numbers.js";
import { Term } from "../parts/term.jsx";
import { visible } from "../parts/text.js";
import { MONEY } from "./by_hand.jsx";
import { Experiment } from "./experiment.jsx";
import { Figure } from "./facts.jsx";
import {
  AGREE,
  aligned,
  BEGINNING,
  CONTROL,
  FROM,
  HEAT,
  ORDER,
  READING,
} from "./tries_by_model.jsx";

/** @type {import("./lessons.js").RunSource} */
const AMBIGUOUS = { text: "The man saw the astronomer with a telescope", kind: "translator" };

/** How the experiment's two heads are found: they differ most in two words. */
const ON_READING = { word: READING.word, pair: READING.between };

/** @type {import("./facts.jsx").Needs} */
const byHand = ({ run }) => ({
  compared: { path: `runs/${run.run}/perspectives`, query: { l: 0, i: 7 } },
});

/**
 * What one head made by hand gives the word that it looks at.
 * @type {(compared: PerspectivesAnswer | null, head: number) => any}
 */
const lookedAt = (compared, head) => {
  const weights = compared?.heads[head].weights;
  const at = weights ? argmax(weights) : 0;
  return (
    <>
      <b class="k">{compared ? visible(compared.columns[at]) : "…"}</b> (
      <Figure>{weights && percent(weights[at])}</Figure>)
    </>
  );
};

/** @type {import("./lessons.js").Lesson[]} */
export const BY_MODEL = [
  {
    name: "heads",
    title: "Two heads",
    teaser: "Several heads look at one word from several sides.",
    run: { example: "telescope" },
    captions: [
      {
        needs: byHand,
        say: ({ compared }) => (
          <>
            “The man saw the astronomer with a telescope.” Who had it? One attention can only give
            one answer. These two <Term name="head">heads</Term> are made by hand: from{" "}
            <b class="q">telescope</b>, A looks at {lookedAt(compared, 0)}, B at{" "}
            {lookedAt(compared, 1)}.
          </>
        ),
        at: {
          screen: "heads",
          layer: 0,
          head: 0,
          query: 7,
          heads: { layerA: 0, headA: 0, layerB: 0, headB: 1 },
        },
        attempt: AGREE,
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
        needs: ({ run }) => ({ found: { path: `runs/${run.run}/readings`, query: READING } }),
        say: ({ found, run }) => <Learnt found={found} run={run} />,
        at: { screen: "heads" },
        run: AMBIGUOUS,
        ...ON_READING,
        attempt: CONTROL,
        below: Experiment,
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
        ...ON_READING,
      },
    ],
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
            An encoder has read the sentence, a decoder has written the German one. Both are drawn
            above: every box is one attention that you can open. A word in several pieces is as
            likely as all its pieces together.
          </>
        ),
        at: { screen: "output", layer: null },
      },
      {
        say: (
          <>
            While it wrote a German word, it looked at the English ones to which its ribbons lead.
            Nobody told it which word belongs to which: it has learnt that from sentences and their
            translations.
          </>
        ),
        at: { screen: "alignment" },
        attempt: FROM,
      },
      {
        needs: aligned,
        say: ({ sharpest, alignment, run }) => (
          <>
            This is <Term name="cross-attention">encoder–decoder attention</Term>: the query comes
            from the German side, keys and values from the English side. It is one head,{" "}
            {sharpest ? headName(run.attentions[sharpest.l], sharpest.h) : "…"}; the ribbons were
            the mean of {alignment ? run.attentions[alignment.l].heads.length : "…"} heads, so that
            its numbers differ a little from theirs.
          </>
        ),
        at: { screen: "walk", kind: "cross", walk: { step: "softmax" } },
      },
      {
        say: (
          <>
            The encoder reads the sentence with several heads in several layers. Every square is one
            head: rows are queries, columns keys; the stronger the colour, the larger the{" "}
            <Term name="weight" />.
          </>
        ),
        at: { screen: "heads", kind: "encoder" },
        attempt: ORDER,
        takesSentences: true,
      },
    ],
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
            A GPT has read these words and gives every <Term name="token" /> of its vocabulary a
            probability of being next. These are the ten likeliest.
          </>
        ),
        at: { screen: "output" },
      },
      {
        say: (
          <>
            A low <Term name="temperature" /> makes likely words likelier, a high one makes the
            choice more even. Append a word, and the model guesses again.
          </>
        ),
        at: { screen: "output", output: { temperature: 0.5 } },
        attempt: HEAT,
      },
      {
        say: (
          <>
            How it got there: the last word looks back at the words before it. It cannot look ahead,
            so the upper right of every head is hatched.
          </>
        ),
        at: { screen: "heads" },
        attempt: BEGINNING,
      },
      {
        say: "One of these heads, step by step, for the last word.",
        at: { screen: "walk", walk: { step: "softmax" } },
      },
    ],
  },
];

/**
 * Which heads of a translator read which of the two words, and how the two that are shown were
 * chosen.
 * @param {{found: ReadingsAnswer | null, run: Run | null}} props
 */
function Learnt({ found, run }) {
  const [a, b] = (found?.pair ?? []).map((at) => found?.heads[at]);
  /** @param {typeof a} head */
  const said = (head) => {
    const at = head ? argmax(head.weights) : 0;
    return (
      <>
        {head && run ? headName(run.attentions[head.l], head.h) : "…"} prefers{" "}
        <b class="k">{head && found ? visible(found.between[at]) : "…"}</b> (
        <Figure>{head && percent(head.weights[at])}</Figure>)
      </>
    );
  };
  return (
    <>
      A translator has learnt heads from data. If <i>with</i> belongs to <b class="k">saw</b>, the
      man had the telescope; if to <b class="k">astronomer</b>, the astronomer had it. From{" "}
      <b class="q">with</b>, A, {said(a)}, and B, {said(b)}: of {found?.heads.length ?? "…"} heads,{" "}
      {found?.left ?? "…"} attend by position and are left out, and of the others these two differ
      most in these two words.
    </>
  );
}
