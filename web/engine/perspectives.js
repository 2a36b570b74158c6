/** The heads of a worked example, compared in what they attend to from one word. */
import { seven, weightsOf } from "./answers.js";
import { sum } from "./matrix.js";
import { badParameter, unknown } from "./params.js";

/**
 * @typedef {import("./answers.js").ExampleRequest} ExampleRequest
 * @typedef {import("./example_run.js").View} View
 * @typedef {import("./matrix.js").Matrix} Matrix
 * @typedef {{l: number, h: number, habit: null, share: number, weights: number[]}} HeadOnWord
 */

const MOST_WORDS = 8; // words that are compared

/** The largest share that goes to one kind of position. @type {(m: Matrix, across: boolean) => number} */
function positionalShare(weights, across) {
  /** @type {(numbers: number[]) => number} */
  const mean = (numbers) => (numbers.length ? sum(numbers) / numbers.length : 0);
  const columns = weights[0].map((_, j) => mean(weights.map((row) => row[j])));
  const shares = [columns[0], columns.length > 1 ? Math.max(...columns.slice(1)) : 0];
  if (!across && weights.length === columns.length)
    for (const offset of [-1, 0, 1])
      shares.push(mean(weights.map((row, i) => row[i + offset]).filter((x) => x !== undefined)));
  return Math.max(...shares);
}

/**
 * Return what each head of the views attends to from a word.
 * @type {(views: View[], i: number) => HeadOnWord[]}
 */
const headsOn = (views, i) =>
  views.flatMap((view) =>
    weightsOf(view).map((weights, h) => ({
      ...{ l: view.l, h, habit: null, share: seven(positionalShare(weights, view.across)) },
      weights: weights[i],
    })),
  );

/**
 * Return the two heads that differ most in the weights of some keys; of pairs that differ alike, the
 * first. Null where there is one head.
 * @type {(heads: HeadOnWord[], keys: number[]) => number[] | null}
 */
function mostDifferent(heads, keys) {
  /** @type {number[] | null} */
  let pair = heads.length > 1 ? [0, 1] : null;
  let most = 0;
  heads.forEach((one, a) =>
    heads.slice(a + 1).forEach((other, after) => {
      const apart = sum(keys.map((j) => Math.abs(one.weights[j] - other.weights[j])));
      if (apart > most) [most, pair] = [apart, [a, a + 1 + after]];
    }),
  );
  return pair;
}

/** @type {(request: ExampleRequest) => any} */
export function perspectives(request) {
  const { run } = request;
  const l = request.index("l", run.views.length, "attention", 0);
  const { across, n_q } = run.views[l];
  const i = request.index("i", n_q, "query");
  const found = run.views.filter((view) => view.across === across && i < view.n_q);
  const { query_tokens, key_tokens } = /** @type {View} */ (found.at(-1)).scene;
  const heads = headsOn(found, i);
  // Compared on other words than the query's own.
  const others = [...key_tokens.keys()].filter((j) => across || j !== i);
  return {
    ...{ l, i, word: i, names: query_tokens, columns: key_tokens },
    heads: heads.map((one) => ({ ...one, weights: one.weights.map(seven) })),
    pair: mostDifferent(heads, others),
  };
}

/** @type {(words: string[], name: string) => number} */
function placeOf(words, name) {
  const found = words.findLastIndex((word) => word.toLowerCase() === name.toLowerCase());
  if (found < 0) throw unknown(`there is no word "${name.slice(0, 40)}" in this text`);
  return found;
}

/** @type {(request: ExampleRequest) => any} */
export function readings(request) {
  const { run } = request;
  const { across, scene, n_q, n_k, l } =
    run.views[request.index("l", run.views.length, "attention", 0)];
  const i = placeOf(scene.query_tokens, request.text("word") ?? "");
  const names = (request.text("between") ?? "").split(",").filter(Boolean);
  if (names.length < 2 || names.length > MOST_WORDS)
    throw badParameter(`between= takes 2 to ${MOST_WORDS} words, such as saw,astronomer`);
  const chosen = names.map((name) => placeOf(scene.key_tokens, name));
  const even = chosen.map(() => 1 / n_k);
  const views = run.views.filter((view) => view.across === across && view.n_q === n_q);
  const heads = headsOn(views, i);
  return {
    ...{ l, word: scene.query_tokens[i], i, between: chosen.map((j) => scene.key_tokens[j]) },
    even: even.map(seven),
    heads: heads.map((one) => {
      const weights = chosen.map((j) => one.weights[j]);
      const largest = Math.max(...weights);
      const reads = largest > even[0] * (1 + 1e-6) ? weights.indexOf(largest) : null;
      return { ...one, weights: weights.map(seven), reads };
    }),
    ...{ pair: mostDifferent(heads, chosen), left: 0, control: null },
  };
}
