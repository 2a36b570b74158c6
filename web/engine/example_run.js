/** A worked example as a run: what explorer/make_run.py describes, computed here. */
import { Failure } from "../transport/http.js";
import { attendRow, cosine, formula, general, maskName, scaleFor, variance } from "./attention.js";
import DATA from "./examples.json" with { type: "json" };
import { evaluate } from "./matrix.js";
import { nameOf, parseName, PREFIX } from "./names.js";
import { badParameter, unknown } from "./params.js";

/**
 * @typedef {import("./matrix.js").Matrix} Matrix
 * @typedef {import("./matrix.js").Expression} Expression
 * @typedef {import("./attention.js").Definition} Definition
 * @typedef {import("./attention.js").Row} Row
 * @typedef {import("./names.js").Changed} Changed
 * @typedef {{title: string, caption: string, query: string, query_tokens: string[], key_tokens:
 *   string[], queries: Expression[], keys: Expression[], values: Expression[], score:
 *   [string, ...Expression[]], scale: number | null, mask: string, findings: any[][], moves:
 *   boolean, inputs: string[]}} Scene
 * @typedef {{name: string, sentence: string, origin: string, together: boolean, inputs:
 *   import("./names.js").Input[], scenes: Scene[]}} Example
 */

/**
 * One attention: queries, keys and values of each head, and every row of each, computed once.
 * @typedef {{l: number, scene: Scene, definition: Definition, n_q: number, n_k: number, across:
 *   boolean, heads: {queries: Matrix, keys: Matrix, values: Matrix, rows: Row[]}[], missing:
 *   Record<string, string>}} View
 * @typedef {{name: string, example: Example, changed: Changed, views: View[], facts: Run}}
 *   ExampleRun
 */

/** @type {Record<string, Example>} */
const EXAMPLES = Object.fromEntries(
  /** @type {Example[]} */ (/** @type {unknown} */ (DATA.examples)).map((one) => [one.name, one]),
);
const LARGEST_NUMBER = 1e6; // in a cell

// Why an attention of an example cannot give an answer: as explorer/run.py says it.
const WITHOUT_STREAM =
  "here the context is no new vector of a word that could be drawn as a move: in the examples " +
  "journey and bank it is";
const WITHOUT_MODEL = "what follows the heads is shown for models of Telescope that run here";
const WITHOUT_IMAGE =
  "no key is said to be a patch of an image: ts.watch(model, tokens=ts.Grid(14, 14)) says it";
const OTHER_NORMALIZER =
  "the map shows log weights of softmax, and this attention has another normaliser";
/** What the page may ask of an attention; what one cannot give has a reason in `why`. */
const ABILITIES = "trace context map geometry alignment tokens after tiles positions image".split(
  " ",
);

/** Return the example that a run shows. @type {(run: string) => Example | undefined} */
export const exampleOf = (run) =>
  run.startsWith(PREFIX) ? EXAMPLES[run.slice(PREFIX.length).split("~")[0]] : undefined;

/** The runs that were asked for last. @type {Map<string, ExampleRun>} */
const made = new Map();
const KEPT = 16;

/**
 * Return an example as a run, with what its name changes.
 * @param {string} name
 * @returns {ExampleRun}
 */
export function openRun(name) {
  const found = made.get(name);
  if (found) return found;
  const example = /** @type {Example} */ (exampleOf(name));
  const { inputs, normalize } = parseName(name, example);
  return keep(makeRun(example, { inputs: checked(example, inputs), normalize }, name));
}

/**
 * Return an example as a run, from the body of a POST: {"example": "bank", "inputs": {"x": […]}}.
 * @param {Record<string, any>} body
 */
export function runOf({ example: asked, inputs, normalize, ...rest }) {
  if (Object.keys(rest).length)
    throw badJson('an example takes "inputs" and "normalize", and nothing else');
  if (asked.includes("~") && exampleOf(PREFIX + asked.replace(PREFIX, "")))
    return openRun(PREFIX + asked.replace(PREFIX, ""));
  const example = exampleOf(PREFIX + asked.replace(PREFIX, ""));
  if (!example)
    throw unknown(
      `there is no example "${asked.slice(0, 40)}"; there are ${Object.keys(EXAMPLES).join(", ")}`,
    );
  if (![undefined, null, "softmax", "by_sum"].includes(normalize))
    throw badJson("normalize must be one of softmax, by_sum");
  const changed = { inputs: checked(example, inputs ?? {}), normalize: normalize ?? "softmax" };
  const name = nameOf(example, changed);
  return made.get(name) ?? keep(makeRun(example, changed, name));
}

/** @param {ExampleRun} run */
function keep(run) {
  made.set(run.name, run);
  if (made.size > KEPT) made.delete(/** @type {string} */ (made.keys().next().value));
  return run;
}

/** @type {(message: string) => Failure} */
const badJson = (message) => new Failure(message, "bad-json");

/**
 * Return all matrices of an example, with those that are given in their places.
 * @type {(example: Example, inputs: any) => Record<string, Matrix>}
 */
function checked(example, inputs) {
  if (typeof inputs !== "object" || Array.isArray(inputs))
    throw badJson('inputs must be {"x": [[…], …]}, rows of numbers by name');
  const found = Object.fromEntries(example.inputs.map((one) => [one.name, one.numbers]));
  for (const [name, rows] of Object.entries(inputs)) {
    const own = found[name];
    if (!own)
      throw badJson(
        `there is no input "${name.slice(0, 40)}"; there are ${Object.keys(found).join(", ")}`,
      );
    const fits =
      rows?.length === own.length &&
      rows.every((/** @type {any} */ row) => Array.isArray(row) && row.length === own[0].length);
    if (!fits) throw badJson(`"${name}" must be ${own.length} rows of ${own[0].length} numbers`);
    rows.forEach((/** @type {any[]} */ row, /** @type {number} */ i) =>
      row.forEach((x, j) => {
        if (typeof x !== "number" || !(Math.abs(x) <= LARGEST_NUMBER))
          throw badJson(
            `"${name}", row ${i}, column ${j}: ${String(x).slice(0, 20)} is not a number from -1e6 ` +
              "to 1e6",
          );
      }),
    );
    // -0 is 0, as a name would write it
    found[name] = rows.map((/** @type {number[]} */ row) => row.map((x) => x + 0));
  }
  return found;
}

/**
 * Compute every row of every attention of an example.
 * @type {(example: Example, changed: Changed, name: string) => ExampleRun}
 */
function makeRun(example, changed, name) {
  const views = example.scenes.map((scene, l) => makeView(scene, l, changed));
  const facts = /** @type {Run} */ ({
    ...{ run: name, rev: name, kind: "example", title: example.sentence, model: example.name },
    ...{ text: null, target: null, written: null, keep: "steps" },
    example: {
      name: example.name,
      origin: example.origin,
      normalize: changed.normalize,
      inputs: example.inputs.map((one) => ({
        ...{ name: one.name, rows: one.rows, numbers: changed.inputs[one.name] },
      })),
      scenes: views.map((view) => ({
        title: view.scene.title,
        caption: view.scene.caption,
        query: view.scene.query_tokens.indexOf(view.scene.query),
        findings: view.scene.findings.flatMap((finding) => linesOf(finding, view)),
        inputs: view.scene.inputs,
      })),
    },
    ...{ notice: null, output: null },
    attentions: views.map(describe),
  });
  return { name, example, changed, views, facts };
}

/** @type {(scene: Scene, l: number, changed: Changed) => View} */
function makeView(scene, l, { inputs, normalize }) {
  /** @type {Map<string, Matrix>} */
  const known = new Map();
  /** @type {(expression: Expression) => Matrix} */
  const valueOf = (expression) => {
    const key = JSON.stringify(expression);
    if (!known.has(key)) known.set(key, evaluate(expression, inputs));
    return /** @type {Matrix} */ (known.get(key));
  };
  const [kind, ...parts] = scene.score;
  const [a, b, c] = parts.map(valueOf);
  /** @type {Record<string, import("./attention.js").Score>} */
  const scores = {
    dot: { kind: "dot" },
    general: { kind: "general", W: a },
    additive: { kind: "additive", W_q: a, W_k: b, v: c?.[0] },
  };
  /** @type {Definition} */
  const definition = {
    ...{ score: scores[kind], scale: scene.scale, normalize, hidden: [] },
    causal: scene.mask === "causal",
  };
  const heads = scene.queries.map((expression, h) => {
    const [queries, keys, values] = [expression, scene.keys[h], scene.values[h]].map(valueOf);
    const rows = queries.map((_, i) => attendRow(definition, i, queries, keys, values));
    return { queries, keys, values, rows };
  });
  const [n_q, n_k] = [scene.query_tokens.length, scene.key_tokens.length];
  // one query beside several keys is a single row, and not another text
  const across = n_q > 1 && scene.query_tokens.join("\0") !== scene.key_tokens.join("\0");
  const missing = {
    ...(normalize !== "softmax" && { map: OTHER_NORMALIZER }),
    ...(!scene.moves && { geometry: WITHOUT_STREAM }),
    ...{ after: WITHOUT_MODEL, image: WITHOUT_IMAGE },
  };
  return { l, scene, definition, n_q, n_k, across, heads, missing };
}

/** @type {(view: View) => Attention} */
const describe = (view) => {
  const { l, scene, definition, n_q, n_k, heads, missing } = view;
  const d_k = heads[0].keys[0].length;
  return {
    ...{ l, name: `scene.${l}`, title: scene.title, kind: view.across ? "cross" : "self" },
    ...{ heads: heads.map((_, h) => h), batch: 1, n_q, n_k, d_k, d_v: heads[0].values[0].length },
    ...{ formula: formula(definition, d_k), mask: maskName(definition, n_k) },
    has: Object.fromEntries(
      ABILITIES.map((what) => [what, !((what === "tiles" ? "map" : what) in missing)]),
    ),
    why: missing,
  };
};

/** Four decimal places; from a million on they say nothing. @type {(x: number) => string} */
const four = (x) => (Math.abs(x) >= 1e6 ? general(x, 4) : x.toFixed(4));

/**
 * Return the lines of a finding, as tasks/explaining/examples.py writes them.
 * @type {(finding: any[], view: View) => string[]}
 */
function linesOf([kind, ...parts], view) {
  const [{ keys, values, rows }] = view.heads;
  if (kind === "variance") {
    const every = view.heads.flatMap((head) => head.rows);
    const d_k = keys[0].length;
    const [before, after] = [
      variance(every.flatMap((row) => row.scores)),
      variance(every.flatMap((row) => row.scaled)),
    ].map(four);
    return [`variance of the scores: ${before} before ÷√${d_k}, ${after} after, ${d_k} times less`];
  }
  if (kind === "nearness") {
    const both = view.scene.key_tokens.join(" and ");
    /** @type {(a: number[], b: number[]) => string} */
    const nearness = (a, b) =>
      `cosine ${four(cosine(a, b))}, distance ${four(Math.hypot(...a.map((x, m) => x - b[m])))}`;
    return [
      `${both} before: ${nearness(values[0], values[1])}`,
      `${both} after:  ${nearness(rows[0].context, rows[1].context)}`,
    ];
  }
  const [query, words, meanings] = parts;
  const { query_tokens, key_tokens } = view.scene;
  return meanings.map((/** @type {string} */ meaning, /** @type {number} */ h) => {
    const { weights } = view.heads[h].rows[query_tokens.indexOf(query)];
    const shares = words.map(
      (/** @type {string} */ word) =>
        `${query} → ${word} ${four(weights[key_tokens.indexOf(word)])}`,
    );
    return `head ${h}: ${shares.join(", ")}; ${meaning}`;
  });
}

const TEMPERATURE = /^t:([0-9]{1,2}(?:\.[0-9]{1,3})?)$/;
const HIDDEN = /^hide:([0-9]{1,4})$/;

/**
 * Return a definition with the changes that the parameter `edits` names, and whether the head is
 * muted.
 * @type {(edits: string, view: View) => {definition: Definition, mute: boolean}}
 */
export function withEdits(edits, view) {
  const changes = { scale: false, mask: false, sum: false, mute: false };
  let heat = 1;
  /** @type {number[]} */
  const hidden = [];
  for (const word of edits.split(",").filter(Boolean)) {
    const hot = Number(word.match(TEMPERATURE)?.[1]);
    const covered = Number(word.match(HIDDEN)?.[1]);
    if (word in changes) changes[/** @type {keyof typeof changes} */ (word)] = true;
    else if (hot >= 0.05 && hot <= 20) heat = hot;
    else if (covered < view.n_k) hidden.push(covered);
    else
      throw badParameter(
        `edits="${word.slice(0, 40)}" is not known; known: scale, mask, sum, mute, t:0.5, hide:3`,
      );
  }
  const { definition } = view;
  const { scale, mask, sum, mute } = changes;
  const scaled = scale || mask || sum || heat !== 1;
  const own = scaleFor(definition, view.heads[0].keys[0].length);
  return {
    mute,
    definition: {
      ...definition,
      scale: scaled ? (scale ? 1 : own) / heat : definition.scale,
      causal: definition.causal && !mask,
      normalize: sum ? "by_sum" : definition.normalize,
      hidden,
    },
  };
}
