/**
 * What to try on worked examples: each try asks for a guess, and tells by the numbers of the page
 * whether it was done.
 */
import { argmax, full, percent, short } from "../parts/numbers.js";
import { visible } from "../parts/text.js";
import { STOPS } from "../screens/variance.jsx";
import { inputOf, stepOf } from "./facts.jsx";

/** @typedef {import("./lessons.js").Try} Try */

/** @type {(i: number, l?: number) => {path: string, query: Query}} */
const original = (i, l = 0) => ({ path: "runs/example-journey/trace", query: { l, h: 0, i } });
/** @type {(run: Run, i: number, l?: number) => {path: string, query: Query}} */
const current = (run, i, l = 0) => ({ path: `runs/${run.run}/trace`, query: { l, h: 0, i } });
const JOURNEY = 1; // places of words in "Your journey starts with one step"
const STARTS = 2;
const ONE = 4;
const STEP = 5;

/**
 * Return the place of the largest number but for one.
 * @type {(numbers: number[], without: number) => number}
 */
const largestBut = (numbers, without) =>
  argmax(numbers.map((x, at) => (at === without ? -Infinity : x)));

/** Who fits journey best. @type {Try} */
export const ALIKE = {
  name: "alike",
  about: "who fits journey best",
  ask: (
    <>
      Which word fits <i>journey</i> best, besides itself?
    </>
  ),
  choices: ({ trace }) =>
    (trace?.tokens ?? []).filter(
      (/** @type {string} */ _, /** @type {number} */ at) => at !== JOURNEY,
    ),
  right: ({ trace }) => {
    const best = largestBut(stepOf(trace, "scores") ?? [0], JOURNEY);
    return best > JOURNEY ? best - 1 : best;
  },
  task: "Choose its row in the table.",
  needs: ({ run }) => ({ trace: current(run, JOURNEY) }),
  why: (guess, { trace }) => {
    const scores = stepOf(trace, "scores") ?? [];
    const at = guess < JOURNEY ? guess : guess + 1;
    const best = largestBut(scores, JOURNEY);
    return `${visible(trace.tokens[at])} scores ${short(scores[at])}. The numbers of ${visible(trace.tokens[best])} are closer to those of journey, feature by feature.`;
  },
  judge: ({ trace, state }) => {
    const scores = stepOf(trace, "scores") ?? [];
    const best = largestBut(scores, JOURNEY);
    const chosen = state.key === null ? JOURNEY : Number(state.key);
    const said = `${visible(trace.tokens[chosen])} scores ${short(scores[chosen])}`;
    if (chosen === best)
      return {
        done: true,
        say: `${said}, the most after journey itself with ${short(scores[JOURNEY])}.`,
      };
    return {
      done: false,
      say: `${said}: ${chosen === JOURNEY ? "that is journey itself" : "another word scores more"}.`,
    };
  },
};

/** A word that is the opposite of itself. @type {Try} */
export const OPPOSITE = {
  name: "opposite",
  about: "a word with all signs changed",
  ask: (
    <>
      What happens to the weight of <i>starts</i> if all its numbers change their sign?
    </>
  ),
  choices: [
    "it becomes negative",
    "it becomes small, but stays above 0",
    "it becomes exactly 0",
    "it stays as it is",
  ],
  right: 1,
  why: [
    "The score becomes negative, the weight does not: e to any power is positive.",
    "",
    "e to any power is more than 0, however small: only a mask gives exactly 0.",
    "The dot product changes its sign, so the score does, and the weight follows.",
  ],
  task: "Give starts the numbers −0.57, −0.85, −0.64.",
  at: { screen: "walk", layer: 0, head: 0, query: JOURNEY, walk: { step: "embedding" } },
  needs: ({ run }) => ({
    base: { path: "runs/example-journey" },
    before: original(JOURNEY),
    now: current(run, JOURNEY),
  }),
  judge: ({ base, before, now, run }) => {
    const turned = inputOf(base, "x")[STARTS].map(
      (x, m) => Math.abs(inputOf(run, "x")[STARTS]?.[m] + x) < 1e-6,
    );
    const [was, is] = [before, now].map((one) => percent(stepOf(one, "weights")?.[STARTS] ?? NaN));
    if (turned.every(Boolean)) return { done: true, say: `${was} became ${is}.` };
    const right = turned.filter(Boolean).length;
    return {
      done: false,
      say: `starts has ${is}${right ? `; of its three numbers ${right} changed the sign` : "; all three numbers must be the opposite"}.`,
    };
  },
};

/** One attends to journey. @type {Try} */
export const MOST = {
  name: "most",
  about: "follow another word",
  ask: (
    <>
      Follow <i>one</i> instead of <i>journey</i>: which word gets its largest weight?
    </>
  ),
  choices: ({ trace }) => trace?.tokens ?? [],
  right: ({ trace }) => argmax(stepOf(trace, "weights") ?? [0]),
  why: (guess, { trace }) => {
    const weights = stepOf(trace, "weights") ?? [];
    const said = `${visible(trace.tokens[guess])} gets ${percent(weights[guess])}`;
    return guess === ONE
      ? `${said}: the query of a word is not its key, so a word need not fit itself.`
      : `${said}: its key has smaller numbers than that of ${visible(trace.tokens[argmax(weights)])}.`;
  },
  task: "Choose the query one.",
  needs: ({ run }) => ({ trace: current(run, ONE, 1) }),
  judge: ({ trace, state }) => {
    const weights = stepOf(trace, "weights") ?? [];
    const best = argmax(weights);
    if (state.layer === 1 && state.query === ONE)
      return {
        done: true,
        say: `${visible(trace.tokens[best])} gets ${percent(weights[best])}, one itself ${percent(weights[ONE])}.`,
      };
    return { done: false, say: "another query is chosen." };
  },
};

/** A query that looks for nothing. @type {Try} */
export const NOTHING = {
  name: "nothing",
  about: "a query that looks for nothing",
  ask: (
    <>
      Set all of W<sub>q</sub> to 0. What does a query that looks for nothing get?
    </>
  ),
  choices: ["nothing: all weights are 0", "itself alone", "the same of every word"],
  right: 2,
  why: [
    "All scores are 0, and e to the power of 0 is 1: softmax shares whatever it is given.",
    "Its score with itself is 0 like all others: nothing sets it apart.",
    "",
  ],
  task: (
    <>
      Type 0 into the six cells of W<sub>q</sub>.
    </>
  ),
  at: { screen: "walk", layer: 1, head: 0, query: JOURNEY, walk: { step: "embedding" } },
  needs: ({ run }) => ({ now: current(run, JOURNEY, 1) }),
  judge: ({ now, run }) => {
    const left = inputOf(run, "W_q")
      .flat()
      .filter((x) => x !== 0).length;
    const weights = stepOf(now, "weights") ?? [];
    const [low, high] = [Math.min(...weights), Math.max(...weights)].map(percent);
    if (!left) return { done: true, say: `every one of the six words gets ${high}.` };
    return {
      done: false,
      say: `${left} of six numbers are not 0, and weights go from ${low} to ${high}.`,
    };
  },
};

/** Without the division. @type {Try} */
export const UNDIVIDED = {
  name: "undivided",
  about: "without the division",
  ask: (
    <>
      What does <i>Machines</i> get if the scores are not divided?
    </>
  ),
  choices: ["as much as now", "about half", "hardly anything"],
  right: 2,
  why: [
    "Softmax goes by the difference of two scores: 2 when they are divided, 16 when they are not.",
    "The larger the difference of two scores, the less the second one gets.",
    "",
  ],
  task: (
    <>
      Open <b>What if</b> and press <b>not ÷ √d</b>.
    </>
  ),
  needs: ({ run }) => ({
    trace: { path: `runs/${run.run}/trace`, query: { l: 0, h: 0, i: 0 } },
    edited: { path: `runs/${run.run}/whatif`, query: { l: 0, h: 0, i: 0, edits: "scale" } },
  }),
  judge: ({ trace, edited, state }) => {
    const was = percent(stepOf(trace, "weights")?.[1] ?? NaN);
    if ((state.edits ?? "").split(",").includes("scale"))
      return { done: true, say: `${was} became ${short(100 * edited.after[1], 2)} %.` };
    return { done: false, say: `Machines has ${was}: the scores are still divided.` };
  },
};

const WINS = [8, 24, 96]; // features, of which the last is the first that is enough
const MUCH = 0.9;
/** @type {(facts: import("./facts.jsx").Facts) => number[]} */
const winning = (facts) => WINS.map((d) => facts[`d${d}`]?.dot.largest);

/** From which d on one key wins. @type {Try} */
export const WINNER = {
  name: "winner",
  about: "from which d on one key wins",
  ask: "From which d on does one of eight keys take more than 90 % on average, if nothing is divided?",
  choices: WINS.map((d) => `about ${d}`),
  right: (facts) => winning(facts).findIndex((one) => one > MUCH),
  why: (guess, facts) =>
    `At d = ${WINS[guess]} the largest of the eight weights is ${percent(winning(facts)[guess])} on average.`,
  task: "Move the slider to the first d where it is more than 90 %.",
  at: { screen: "variance" },
  needs: ({ state }) => {
    const before = STOPS[STOPS.indexOf(state.features) - 1];
    return {
      now: { path: "variance", query: { d: state.features } },
      less: { path: "variance", query: { d: before ?? 1 } },
      ...Object.fromEntries(WINS.map((d) => [`d${d}`, { path: "variance", query: { d } }])),
    };
  },
  judge: ({ now, less }) => {
    const at = `at d = ${now.d} it is ${percent(now.dot.largest)}`;
    const before = `at ${less.d} ${percent(less.dot.largest)}`;
    if (now.dot.largest <= MUCH) return { done: false, say: `${at}: more features are needed.` };
    if (less.d < now.d && less.dot.largest > MUCH)
      return { done: false, say: `${at}, but ${before} already: fewer features are enough.` };
    return {
      done: true,
      say: `${at}, ${before}. Divided by √${now.d} it is ${percent(now.divided.largest)}.`,
    };
  },
};

/** What the first word sees. @type {Try} */
export const FIRST = {
  name: "first",
  about: "what the first word sees",
  ask: (
    <>
      What does <i>Your</i>, the first word, look at?
    </>
  ),
  choices: ["all six words", "itself alone", "nothing"],
  right: 1,
  why: [
    "The other five stand after it, and the mask hides what comes later.",
    "",
    "A word sees itself: the mask hides only what comes after it.",
  ],
  task: "Choose the query Your.",
  needs: ({ run }) => ({ trace: current(run, 0, 2) }),
  judge: ({ trace, state }) => {
    const weights = stepOf(trace, "weights") ?? [];
    const seen = weights.filter((w) => w > 0).length;
    if (state.layer === 2 && state.query === 0)
      return {
        done: true,
        say: `it sees ${seen} of ${weights.length} words, and gives it ${percent(weights[0])}.`,
      };
    return { done: false, say: "another query is chosen." };
  },
};

/** What the mask takes from the last word. @type {Try} */
export const TAKEN = {
  name: "taken",
  about: "what the mask takes from the last word",
  ask: (
    <>
      How much of its weight does the mask take from <i>step</i>, the last word?
    </>
  ),
  choices: ["nothing", "about half", "nearly all"],
  right: 0,
  why: [
    "",
    "No word stands after step, so the mask hides none from it.",
    "No word stands after step, so the mask hides none. It is the first word that loses most.",
  ],
  task: "Choose step among the queries.",
  needs: ({ run }) => ({ open: current(run, STEP, 1), first: current(run, 0, 1) }),
  judge: ({ open, first, state }) => {
    /** @type {(trace: Trace, i: number) => number} */
    const later = (trace, i) =>
      (stepOf(trace, "weights") ?? []).slice(i + 1).reduce((total, w) => total + w, 0);
    const chosen = state.screen === "alignment" ? state.alignment.word : state.query;
    if (chosen === STEP)
      return {
        done: true,
        say: `without the mask, step gives ${percent(later(open, STEP))} to later words, and Your ${percent(later(first, 0))}: that is what the mask takes.`,
      };
    return { done: false, say: "another word is chosen." };
  },
};

/** Two words with one vector. @type {Try} */
export const SAME = {
  name: "same",
  about: "two words with one vector",
  ask: (
    <>
      Give <i>bank</i> the vector of <i>money</i>: 2, 0, 0. Does it still move beside money?
    </>
  ),
  choices: ["yes, as far as before", "yes, away from money", "no"],
  right: 2,
  why: [
    "The context is a mixture of two equal vectors, which is that vector again.",
    "A mixture lies between what it mixes. Here both are one vector, so it lies there.",
    "",
  ],
  task: "Type 2, 0, 0 into the row of bank.",
  at: { screen: "walk", layer: 0, head: 0, query: 1, walk: { step: "embedding" } },
  needs: ({ run }) => ({
    before: { path: "runs/example-bank/trace", query: { l: 0, h: 0, i: 1 } },
    now: current(run, 1),
  }),
  judge: ({ before, now }) => {
    const [was, is] = [before, now].map((trace) =>
      Math.hypot(
        ...trace.context.map(
          (/** @type {number} */ x, /** @type {number} */ m) => x - trace.value[1][m],
        ),
      ),
    );
    const equal = now.value[0].every(
      (/** @type {number} */ x, /** @type {number} */ m) => x === now.value[1][m],
    );
    if (equal) return { done: true, say: `bank moved by ${short(was)}, and now by ${short(is)}.` };
    return {
      done: false,
      say: `bank is ${now.value[1].map(full).join(", ")}, and moves by ${short(is)}.`,
    };
  },
};
