/** What to try on heads made by hand and on models; what is right depends on what a model computes. */
import { headName } from "../parts/answered.jsx";
import { argmax, percent, sum } from "../parts/numbers.js";
import { visible } from "../parts/text.js";
import { stepOf } from "./facts.jsx";

/** @typedef {import("./lessons.js").Try} Try */

const WORDS = "The man saw the astronomer with a telescope".split(" ");
const AGREES = ["telescope", "with", "saw"]; // words to guess from, of which heads agree on one

/** Return whether two heads give every word the same weight. @param {PerspectivesAnswer} found */
const isAgreed = ({ heads: [a, b] }) =>
  a.weights.every((w, at) => Math.abs(w - b.weights[at]) < 1e-6);

/** From which word both heads look at the same. @type {Try} */
export const AGREE = {
  name: "agree",
  about: "where two heads agree",
  ask: "From which of these words do both heads look at the same word?",
  choices: AGREES,
  right: (facts) => AGREES.findIndex((name) => facts[name] && isAgreed(facts[name])),
  why: (guess, facts) => {
    const [a, b] = facts[AGREES[guess]].heads.map((/** @type {any} */ one) =>
      visible(facts[AGREES[guess]].columns[argmax(one.weights)]),
    );
    return `From ${AGREES[guess]}, A looks at ${a} and B at ${b}: its query differs in the two heads.`;
  },
  task: "Choose it as the query, above the fans.",
  needs: ({ run, state }) => {
    const path = `runs/${run.run}/perspectives`;
    return {
      ...Object.fromEntries(
        AGREES.map((name) => [name, { path, query: { l: 0, i: WORDS.indexOf(name) } }]),
      ),
      now: { path, query: { l: 0, i: state.query ?? WORDS.length - 1 } },
    };
  },
  judge: ({ now }) => {
    const [a, b] = now.heads.map((/** @type {any} */ one) => argmax(one.weights));
    const [first, second] = [now.columns[a], now.columns[b]].map(visible);
    const from = visible(now.names[now.word]);
    if (isAgreed(now))
      return {
        done: true,
        say: `from ${from} both look at ${first}, with ${percent(now.heads[0].weights[a])}.`,
      };
    return { done: false, say: `from ${from}, A looks at ${first} and B at ${second}.` };
  },
};

export const READING = { l: 0, word: "with", between: "saw,astronomer" };
const KEPT = 0.75; // of its weight in a control, for a head to have kept it

/**
 * Return whether a weight was kept in a control.
 * @type {(before: number, after: number) => boolean}
 */
export const isKept = (before, after) => after >= KEPT * before;

/**
 * Return the head that reads one of two words most, and which.
 * @param {ReadingsAnswer} found
 */
const strongest = ({ heads }) => {
  const reads = heads.flatMap((one) =>
    one.reads === null ? [] : [{ ...one, at: one.reads, weight: one.weights[one.reads] }],
  );
  return reads.length ? reads[argmax(reads.map(({ weight }) => weight))] : null;
};

/** What a head does in the control. @type {Try} */
export const CONTROL = {
  name: "control",
  about: "the telescope, with a control",
  ask: ({ readings, run }) => {
    const best = readings && strongest(readings);
    if (!best) return "With yesterday before with: what do heads then give the two words?";
    return (
      <>
        {headName(run.attentions[best.l], best.h)} gives <b>{readings.between[best.at]}</b>{" "}
        {percent(best.weight)}. How much is it if <i>yesterday</i> stands between the two words?
      </>
    );
  },
  choices: ["about as much", "clearly less", "nothing at all"],
  right: ({ readings, control }) => {
    const best = readings && strongest(readings);
    if (!best || !control) return -1;
    const after = control.heads.find(
      (/** @type {any} */ one) => one.l === best.l && one.h === best.h,
    ).weights[best.at];
    return isKept(best.weight, after) ? 0 : after >= 0.01 ? 1 : 2;
  },
  why: [
    "Only the distance changed, and the weight fell: the head went by nearness, too.",
    "The weight was kept although the distance changed.",
    "Some weight stays: nearness is a part of what the head goes by, not all.",
  ],
  task: (
    <>
      Press <b>insert “yesterday”</b> in the table of heads.
    </>
  ),
  needs: ({ run, state, known }) => ({
    readings: { path: `runs/${run.run}/readings`, query: READING },
    control: {
      path: state.heads.control && known.readings && `runs/${state.heads.control}/readings`,
      query: { ...READING, between: `${READING.between},yesterday` },
    },
  }),
  judge: ({ readings, control }) => {
    const best = strongest(readings);
    if (!control) return { done: false, say: "the sentence is still as it was." };
    if (!best) return { done: true, say: "no head reads one of the two words." };
    const now = control.heads.find(
      (/** @type {any} */ one) => one.l === best.l && one.h === best.h,
    );
    return {
      done: true,
      say: `${percent(best.weight)} became ${percent(now.weights[best.at])}, and yesterday gets ${percent(now.weights[2])}.`,
    };
  },
};

/** @type {import("./facts.jsx").Needs} */
export const aligned = ({ run, known }) => ({
  sharpest: { path: `runs/${run.run}/sharpest` },
  alignment: {
    path: known.sharpest && `runs/${run.run}/alignment`,
    query: { l: known.sharpest?.l, h: "mean" },
  },
});

/** The written word that is asked about: the second one, or the only one. */
const asked = (/** @type {AlignmentAnswer} */ { real_rows }) => real_rows[1] ?? real_rows[0] ?? 0;

/** Which word read a written word comes from. @type {Try} */
export const FROM = {
  name: "from",
  about: "where a word comes from",
  ask: ({ alignment }) => (
    <>
      Which word does <b class="q">{alignment ? visible(alignment.rows[asked(alignment)]) : "…"}</b>{" "}
      come from?
    </>
  ),
  choices: ({ alignment }) =>
    (alignment?.real_columns ?? []).map((/** @type {number} */ at) => alignment.columns[at]),
  right: ({ alignment }) =>
    alignment.real_columns.indexOf(argmax(alignment.weights[asked(alignment)].map(Number))),
  why: (guess, { alignment }) => {
    const weights = alignment.weights[asked(alignment)];
    const at = alignment.real_columns[guess];
    const best = argmax(weights.map(Number));
    return `${visible(alignment.columns[at])} gets ${percent(weights[at])}, ${visible(alignment.columns[best])} ${percent(weights[best])}.`;
  },
  task: ({ alignment }) =>
    `Choose ${alignment ? visible(alignment.rows[asked(alignment)]) : "it"} among the written words.`,
  at: { screen: "alignment" },
  needs: aligned,
  judge: ({ alignment, state }) => {
    const row = asked(alignment);
    if (state.alignment.word !== row) return { done: false, say: "another word is chosen." };
    const weights = alignment.weights[row].map(Number);
    const best = argmax(weights);
    return {
      done: true,
      say: `${visible(alignment.rows[row])} gives ${percent(weights[best])} to ${visible(alignment.columns[best])}.`,
    };
  },
};

/**
 * Return two written words of which the later one comes from an earlier word; null where all keep
 * their order.
 * @param {AlignmentAnswer} found
 */
function crossing({ real_rows, real_columns, rows, columns, weights }) {
  const real = real_rows.filter((at) => /\p{L}/u.test(rows[at]));
  const from = real.map((row) => {
    const able = real_columns.filter((at) => /\p{L}/u.test(columns[at]));
    return able[argmax(able.map((at) => Number(weights[row][at])))];
  });
  const at = from.findIndex((column, place) => place > 0 && column < from[place - 1]);
  return at < 0
    ? null
    : [at - 1, at].map((place) => [rows[real[place]], columns[from[place]]].map(visible));
}

/** Whether words keep their order. @type {Try} */
export const ORDER = {
  name: "order",
  about: "whether words keep their order",
  ask: "Does every written word come from a word that stands further right than the one before?",
  choices: ["yes: a translation keeps the order", "no: ribbons may cross"],
  right: 1,
  why: ["Languages order words differently, and a query may look at any word that was read.", ""],
  task: "Type a sentence at the top in which ribbons cross, such as “Yesterday I saw a dog.”",
  at: { screen: "alignment" },
  needs: aligned,
  judge: ({ alignment, run }) => {
    const found = crossing(alignment);
    if (!found) return { done: false, say: `in “${visible(run.text)}” no ribbons cross.` };
    const [[first, source], [second, earlier]] = found;
    return {
      done: true,
      say: `${first} comes from ${source}, and ${second}, written after it, from ${earlier}, which stands before.`,
    };
  },
};

const HOT = 2;

/** What temperature does to the likeliest token. @type {Try} */
export const HEAT = {
  name: "heat",
  about: "a temperature of 2",
  ask: "What does a temperature of 2 do to the likeliest token?",
  choices: ["it becomes likelier", "it becomes less likely", "nothing"],
  right: 1,
  why: [
    "Logits are divided by the temperature: above 1 they lie closer together, and shares are more alike.",
    "",
    "The order of the tokens stays, their probabilities do not: smaller differences of logits are more equal shares.",
  ],
  task: "Move the slider to 2.",
  at: { screen: "output" },
  needs: ({ run, state }) => ({
    cold: { path: `runs/${run.run}/output`, query: { temperature: 1 } },
    now: {
      path: `runs/${run.run}/output`,
      query: { temperature: state.output.temperature, top_k: 0, top_p: 1 },
    },
  }),
  judge: ({ cold, now, state }) => {
    const [first] = cold.candidates;
    const heat = state.output.temperature;
    const is = percent(now.candidates[0].p);
    if (heat < HOT)
      return {
        done: false,
        say: `the temperature is ${heat}, and “${visible(first.text)}” has ${is}.`,
      };
    return {
      done: true,
      say: `“${visible(first.text)}” has ${percent(first.p)} at 1, and ${is} at ${heat}.`,
    };
  },
};

/** What the first word can see. @type {Try} */
export const BEGINNING = {
  name: "beginning",
  about: "what the first word can see",
  ask: "What does the first word give to the words after it?",
  choices: ["equal shares", "most to the next one", "nothing"],
  right: 2,
  why: [
    "A GPT writes one word after another, so a mask hides all later words from each.",
    "It may not look ahead: the next word is what it has to guess.",
    "",
  ],
  task: "Choose the first word as the query.",
  needs: ({ run }) => ({
    trace: {
      path: `runs/${run.run}/trace`,
      query: { l: 0, h: run.attentions[0].heads[0], i: 0 },
    },
  }),
  judge: ({ trace, state }) => {
    if (state.query !== 0) return { done: false, say: "another word is chosen." };
    const [own, ...later] = stepOf(trace, "weights") ?? [];
    return {
      done: true,
      say: `it gives itself ${percent(own)}, and all later tokens together ${percent(sum(later))}.`,
    };
  },
};
