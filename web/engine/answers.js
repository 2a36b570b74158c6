/** The answers about a worked example: those of explorer/api.py, from the same numbers. */
import { Failure } from "../transport/http.js";
import {
  attendRow,
  cosine,
  formula,
  logSumExp,
  SCORE_FORMULAS,
  scaleFor,
  stepFormulas,
} from "./attention.js";
import DATA from "./examples.json" with { type: "json" };
import { withEdits } from "./example_run.js";
import { habitsOf, received } from "./habits.js";
import { singular, sum, weigh, zeros } from "./matrix.js";
import { notKept, Params, unknown } from "./params.js";
import { perspectives, readings } from "./perspectives.js";

/**
 * @typedef {import("./example_run.js").ExampleRun} ExampleRun
 * @typedef {import("./example_run.js").View} View
 * @typedef {import("./attention.js").Row} Row
 * @typedef {import("./attention.js").Definition} Definition
 * @typedef {import("./matrix.js").Matrix} Matrix
 */

const MOST_CELLS = 32;
const MOST_LARGEST = 14;
const NO_MODEL = "a worked example has no model that writes";
const NO_OUTPUT = "this run has no output: a recording keeps attentions, not what the model wrote";
const NO_HEADS =
  "what follows the heads is shown for models of Telescope that run here, not for recordings";
const NO_AUTHOR =
  "these vectors come from no model, so nobody wrote them: type a sentence of your own";

/** A number with the seven digits of float32, as the API sends it. @type {(x: number) => number} */
export const seven = (x) => Number(x.toPrecision(7));
/** @type {(rows: Matrix) => Matrix} */
const sevens = (rows) => rows.map((row) => row.map(seven));
/** JSON has no infinities: -inf, inf and nan are texts. @type {(x: number) => any} */
const asJson = (x) => (Number.isFinite(x) ? x : String(x).toLowerCase().replace("inity", ""));

/** A request about one run; its parts are read when they are asked for. */
export class ExampleRequest extends Params {
  /**
   * @param {ExampleRun} run
   * @param {Query} [query]
   */
  constructor(run, query) {
    super(query);
    this.run = run;
  }

  get view() {
    return this.run.views[this.index("l", this.run.views.length, "attention")];
  }

  get h() {
    const h = this.number("h");
    const { heads } = this.view;
    if (!heads[h])
      throw unknown(`there is no head ${h}; there are ${[...heads.keys()].join(", ")}`);
    return h;
  }

  get b() {
    return this.index("b", 1, "sequence", 0);
  }

  get i() {
    return this.index("i", this.view.n_q, "query");
  }

  get place() {
    const { l } = this.view;
    const { h, i, b } = this;
    return { l, h, i, b };
  }

  get row() {
    return this.view.heads[this.h].rows[this.i];
  }

  /** @param {string} what */
  require(what) {
    const why = this.view.missing[what];
    if (why) throw notKept(why);
  }
}

/** All weights of each head. @type {(view: View) => Matrix[]} */
export const weightsOf = (view) => view.heads.map(({ rows }) => rows.map((row) => row.weights));

/** The mean of several matrices. @type {(matrices: Matrix[]) => Matrix} */
const meanOf = (matrices) =>
  matrices[0].map((row, i) =>
    row.map((_, j) => sum(matrices.map((one) => one[i][j])) / matrices.length),
  );

/**
 * Return the trace of one query, computed by this definition.
 * @type {(request: ExampleRequest, definition: Definition, row: Row, values: Matrix) => Trace}
 */
function traceOf(request, definition, row, values) {
  const { view, i } = request;
  const head = view.heads[request.h];
  const d_k = head.keys[0].length;
  const formulas = stepFormulas(definition, d_k, view.n_k);
  const { terms, factors, context } = row;
  return {
    ...request.place,
    token: view.scene.query_tokens[i],
    n_k: view.n_k,
    keys: head.keys.map((_, j) => j),
    tokens: view.scene.key_tokens,
    formula: formula(definition, d_k),
    score: SCORE_FORMULAS[definition.score.kind],
    scale: scaleFor(definition, d_k),
    stream: view.scene.moves
      ? { before: view.heads[0].values[i], after: view.heads[0].rows[i].context }
      : null,
    ...{ query: head.queries[i], key: head.keys, value: values, factors, terms },
    steps: Object.entries(formulas).map(([name, said]) => ({
      name,
      formula: said,
      numbers: row[/** @type {"scores"} */ (name)].map(asJson),
    })),
    lse: definition.normalize === "softmax" ? asJson(logSumExp(row.masked)) : null,
    ...{ sink: null, context, rest: { keys: 0, weight: 0, context: null } },
  };
}

/** @type {(request: ExampleRequest) => any} */
function whatIf(request) {
  const { view, i, row } = request;
  const head = view.heads[request.h];
  const { definition, mute } = withEdits(request.text("edits") ?? "", view);
  const values = mute ? head.values.map((value) => zeros(value.length)) : head.values;
  const edited = attendRow(definition, i, head.queries, head.keys, values);
  const moved = edited.weights.map((w, j) => Math.abs(w - row.weights[j]));
  const most = Math.max(...moved);
  return {
    ...request.place,
    trace: traceOf(request, definition, edited, values),
    ...{ before: row.weights, after: edited.weights },
    changed: most > 0 ? moved.findIndex((x) => x >= most - 1e-12) : null,
    ...{ output: null, reaches: false },
  };
}

/** @type {(request: ExampleRequest) => any} */
function cell(request) {
  const { view, row } = request;
  const j = request.index("j", view.n_k, "key");
  const scaled = row.scaled[j];
  return {
    ...{ ...request.place, j },
    ...{ query: view.scene.query_tokens[request.i], key: view.scene.key_tokens[j] },
    ...{ visible: row.masked[j] !== -Infinity, dot: row.scores[j] },
    ...{ scaled, capped: scaled, biased: scaled, masked: asJson(row.masked[j]) },
    lse: view.definition.normalize === "softmax" ? asJson(logSumExp(row.masked)) : null,
    p: row.weights[j],
  };
}

/** @type {(request: ExampleRequest) => any} */
function encoding(request) {
  const { view } = request;
  const { n_q, n_k } = view;
  const { rows } = view.heads[request.h];
  /** @type {Map<number, {score: number, weight: number, pairs: number}>} */
  const found = new Map();
  rows.forEach((row, i) =>
    row.masked.forEach((x, j) => {
      if (x === -Infinity) return;
      const distance = j - i + n_q - n_k;
      const { score, weight, pairs } = found.get(distance) ?? { score: 0, weight: 0, pairs: 0 };
      found.set(distance, {
        ...{ score: score + row.scaled[j], weight: weight + row.weights[j], pairs: pairs + 1 },
      });
    }),
  );
  const by = [...found].sort(([a], [b]) => a - b);
  return {
    ...{ l: view.l, h: request.h, kind: "unknown", bias: null, added: null, angles: null },
    by_distance: {
      distances: by.map(([distance]) => distance),
      scores: by.map(([, { score, pairs }]) => score / pairs),
      weights: by.map(([, { weight, pairs }]) => weight / pairs),
      pairs: by.map(([, { pairs }]) => pairs),
      queries: n_q,
    },
  };
}

/** @type {(request: ExampleRequest) => any} */
function geometry(request) {
  request.require("geometry");
  const { view, run } = request;
  const { start, stop } = request.span(view.n_q);
  const together = run.example.together;
  const views = together ? run.views : [view];
  const words = views.flatMap((one) =>
    one.scene.query_tokens.map((token) => ({ token, title: one.scene.title })),
  );
  /** @type {(of: (one: View) => Matrix) => Matrix} */
  const shown = (of) => {
    const all = views.flatMap(of);
    return together ? all : all.slice(start, stop);
  };
  const before = shown((one) => one.heads[0].values);
  const after = shown((one) => one.heads[0].rows.map((row) => row.context));
  // a word that several views have is told apart by its view's title
  const isShared = (/** @type {string} */ token) =>
    words.filter((one) => one.token === token).length > 1;
  const tokens = together
    ? words.map(({ token, title }) => (isShared(token) ? title : token))
    : words.slice(start, stop).map(({ token }) => token);
  const { axes, centre, ...flat } = plane(before, after);
  // the rows of x that the vectors before are: words that occur twice are told by place
  const named = run.example.inputs.find((one) => one.name === "x")?.rows ?? [];
  const rows = together
    ? words.map(({ token }) => named.indexOf(token))
    : before.map((_, at) => start + at);
  return {
    ...{ l: view.l, start: together ? 0 : start, stop: together ? tokens.length : stop },
    ...{ n: together ? tokens.length : view.n_q, tokens, ...flat },
    moved: before.map((one, at) => cosine(one, after[at])),
    cosines: { before: cosines(before), after: cosines(after) },
    space: { axes, centre, before, after, rows },
  };
}

/**
 * Project vectors before and after an attention onto the plane in which they vary most.
 * @type {(before: Matrix, after: Matrix) => {before: Matrix, after: Matrix, explained: number[],
 *   axes: Matrix, centre: number[]}}
 */
function plane(before, after) {
  const both = [...before, ...after];
  const mean = weigh(
    both.map(() => 1 / both.length),
    both,
  );
  const centred = both.map((row) => row.map((x, m) => x - mean[m]));
  const found = singular(centred);
  const total = sum(found.map(({ length }) => length ** 2));
  const axes = [0, 1].map((at) => {
    const axis = found[at]?.axis ?? zeros(mean.length);
    // an axis may point either way: its largest feature is positive, of equal ones the first
    const most = Math.max(...axis.map(Math.abs));
    const sign = (axis.find((x) => Math.abs(x) >= most * (1 - 1e-9)) ?? 0) < 0 ? -1 : 1;
    return axis.map((x) => sign * x);
  });
  const flat = centred.map((row) => axes.map((axis) => sum(row.map((x, m) => x * axis[m]))));
  return {
    before: flat.slice(0, before.length),
    after: flat.slice(before.length),
    explained: [0, 1].map((at) => (found[at]?.length ?? 0) ** 2 / Math.max(total, 1e-300)),
    axes,
    centre: mean,
  };
}

/** The cosine between every two vectors. @type {(vectors: Matrix) => Matrix} */
function cosines(vectors) {
  const units = vectors.map((one) => {
    const length = Math.max(Math.hypot(...one), 1e-12);
    return one.map((x) => x / length);
  });
  return units.map((a) => units.map((b) => sum(a.map((x, m) => x * b[m]))));
}

/** @type {(request: ExampleRequest) => any} */
function alignment(request) {
  const { view } = request;
  const ofMean = request.text("h") === "mean";
  const { query_tokens, key_tokens } = view.scene;
  const weights = ofMean ? meanOf(weightsOf(view)) : weightsOf(view)[request.h];
  return {
    ...{ known: 1, l: view.l, h: ofMean ? "mean" : request.h },
    ...{ rows: query_tokens, columns: key_tokens, weights: sevens(weights) },
    real_rows: query_tokens.map((_, at) => at),
    real_columns: key_tokens.map((_, at) => at),
  };
}

/** @type {(request: ExampleRequest) => any} */
function sharpest({ run }) {
  const hasCross = run.views.some((view) => view.across);
  const compared = run.views.filter((view) => view.across || !hasCross);
  const peaks = compared.map((view) => {
    const own = weightsOf(view);
    return [...own, meanOf(own)].map(
      (rows) => sum(rows.map((row) => Math.max(...row))) / rows.length,
    );
  });
  const means = peaks.map((one) => one[one.length - 1]);
  const at = means.indexOf(Math.max(...means));
  const heads = peaks[at].slice(0, -1);
  const head = Math.max(...heads);
  return {
    ...{ l: compared[at].l, mean: seven(means[at]) },
    ...{ h: heads.indexOf(head), head: seven(head), of: compared.length },
  };
}

/** @type {(request: ExampleRequest) => any} */
function heads(request) {
  const { view } = request;
  const own = request.text("h") === undefined ? [...view.heads.keys()] : [request.h];
  const byWords = request.word("by", ["pieces", "words"]) === "words";
  return {
    ...{ l: view.l, rows: view.n_q, columns: view.n_k, exact: true, samples: 0 },
    maps: own.map((h) => ({ h, share: sevens(weightsOf(view)[h]) })),
    habits: own.map((h) => habitsOf(view, h)),
    ...{ habit_keys: DATA.habit_keys, distances: DATA.distances, clear: DATA.clear },
    ...(byWords && { names: view.scene.query_tokens, columns_of: view.scene.key_tokens }),
  };
}

/** @type {(request: ExampleRequest) => any} */
function top(request) {
  request.require("map");
  const { view, row } = request;
  // ordered by scores; of equal ones the lower key is first
  const keys = row.masked
    .map((x, j) => ({ x, j }))
    .sort((a, b) => b.x - a.x || a.j - b.j)
    .map(({ j }) => j)
    .slice(0, MOST_LARGEST)
    .filter((j) => row.weights[j] > 0);
  const numbers = keys.map((j) => row.weights[j]);
  const { l, h, i } = request.place;
  return {
    ...{ l, h, i, token: view.scene.query_tokens[i], n_k: view.n_k, keys },
    tokens: keys.map((j) => view.scene.key_tokens[j]),
    steps: [{ name: "weights", formula: "weights", numbers: numbers.map(seven) }],
    rest: {
      ...{ keys: view.n_k - keys.length, weight: seven(Math.max(0, 1 - sum(numbers))) },
      context: null,
    },
  };
}

/** @type {(request: ExampleRequest) => any} */
function tokens(request) {
  const { view } = request;
  const axis = request.word("axis", ["q", "k"]);
  const all = axis === "q" ? view.scene.query_tokens : view.scene.key_tokens;
  const { start, stop } = request.span(all.length);
  const own = all.slice(start, stop);
  return {
    ...{ l: view.l, axis, start, stop, n: all.length, tokens: own },
    words: own.map((_, at) => start + at),
    names: own.length ? own : null,
  };
}

/** Refuse a request. @type {(message: string) => () => never} */
const refusing = (message) => () => {
  throw notKept(message);
};

/** What is asked below /runs/{run}. @type {Record<string, (request: ExampleRequest) => any>} */
export const ANSWERS = {
  "": ({ run }) => run.facts,
  start: ({ run }) => ({ l: 0, h: 0, i: run.facts.example?.scenes[0].query }),
  trace: (request) =>
    traceOf(request, request.view.definition, request.row, request.view.heads[request.h].values),
  whatif: whatIf,
  ...{ tokens, cell, encoding, geometry, alignment, sharpest, perspectives, heads, top },
  cells(request) {
    const j = request.index("j", request.view.n_k, "key");
    const { masked, weights } = request.row;
    const p = weights.map((weight, at) => (masked[at] === -Infinity ? null : weight));
    return { ...request.place, j, p: p.slice(j, j + MOST_CELLS) };
  },
  positions: (request) => ({
    ...{ l: request.view.l, h: request.h, i: request.i, tokens: request.view.scene.key_tokens },
    ...{ added: null, biases: null },
    with: { scores: request.row.scaled, weights: request.row.weights },
    ...{ without: null, why: "how this model knows positions was not recorded" },
  }),
  received(request) {
    request.require("map");
    const { view, h } = request;
    const { start, stop } = request.span(view.n_k);
    const all = received(view, h);
    return {
      ...{ l: view.l, h, start, stop, n: view.n_k },
      tokens: view.scene.key_tokens.slice(start, stop),
      received: all.slice(start, stop).map(seven),
      most: seven(Math.max(...all)),
    };
  },
  map(request) {
    request.require("map");
    const { view, h, b } = request;
    return {
      ...{ l: view.l, h, b, n_q: view.n_q, n_k: view.n_k, tile: 256, max_zoom: 0 },
      ...{ how: ["share", "max"], value: "log2", dtype: "f16", known: 1, top: false },
    };
  },
  image: (request) => request.require("image"),
  after: refusing(NO_HEADS),
  flow: refusing(NO_HEADS),
  product: refusing(
    "the matrices are known of models of Telescope that run here, not of recordings",
  ),
  output: refusing(NO_OUTPUT),
  draw: refusing(NO_OUTPUT),
  write: refusing(NO_OUTPUT),
  readings,
  answer: () => ({ why: NO_MODEL }),
  sources: refusing(NO_MODEL),
  hidden: refusing(
    "hiding a segment runs the model again, and a recording holds none: type the text into the " +
      "page of telescope serve --model FOLDER, or use recording.sources(span, " +
      'how="hidden", model=model)',
  ),
  why(request) {
    const { query_tokens, key_tokens } = request.view.scene;
    const j = request.index("j", request.view.n_k, "key");
    const query = query_tokens[request.i];
    return {
      ...{ ...request.place, j, than: null, query, key: key_tokens[j], other: null },
      ...{ read: query, split: null, reason: NO_AUTHOR },
    };
  },
  writes: (request) => ({
    ...{ ...request.place, after: request.view.scene.query_tokens[request.i], written: null },
    ...{ up: null, down: null, reason: NO_AUTHOR },
  }),
};

/**
 * Answer a request about a run: "trace" of /runs/example-bank/trace.
 * @type {(run: ExampleRun, resource: string, query?: Query) => any}
 */
export function answerAbout(run, resource, query) {
  const answer = Object.hasOwn(ANSWERS, resource) ? ANSWERS[resource] : null;
  if (!answer)
    throw new Failure(
      `there is nothing at /${`runs/${run.name}/${resource}`.slice(0, 60)}`,
      "unknown",
    );
  return answer(new ExampleRequest(run, query));
}
