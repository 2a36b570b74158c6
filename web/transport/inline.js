/** Answers that an exported file holds; it sends no requests. */
import { Failure, textEntries } from "./http.js";

/** @type {Record<string, string>} */
const DEFAULTS = { b: "0", fmt: "f16" };

/**
 * Return the key of an answer in the file: path and sorted parameters, without those at their
 * defaults.
 * @param {string} path
 * @param {Query} [query]
 */
export function answerKey(path, query) {
  const parameters = textEntries(query)
    .filter(([name, text]) => DEFAULTS[name] !== text)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, text]) => `${name}=${encodeURIComponent(text)}`)
    .join("&");
  return `/${path}${parameters ? `?${parameters}` : ""}`;
}

/** Return the bytes of a base64 text. @param {string} base64 */
const decodeBase64 = (base64) =>
  Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer;

/**
 * Return the bytes of a tile or track. Below the last query a tile is not in the file: NaN in half
 * precision.
 * @param {{base64: string, length?: number}} packed
 */
function pictureBytes({ base64, length }) {
  const held = new Uint16Array(decodeBase64(base64));
  if (length === undefined) return held.buffer;
  const whole = new Uint16Array(length / 2).fill(0x7e00);
  whole.set(held);
  return whole.buffer;
}

/**
 * @typedef {{base64: string, width: number, bits?: 64}} PackedRows
 * @typedef {{base64: string, length: number}} PackedNumbers
 */

/**
 * Return the rows of numbers that the file holds as base64: float32, or 64 bits.
 * @param {PackedRows | null} packed
 * @returns {number[][] | null}
 */
function rowsOf(packed) {
  if (!packed) return null;
  const kind = packed.bits === 64 ? Float64Array : Float32Array;
  const numbers = new kind(decodeBase64(packed.base64));
  return Array.from({ length: numbers.length / packed.width }, (_, row) =>
    Array.from(numbers.subarray(row * packed.width, (row + 1) * packed.width)),
  );
}

/** Return a weight as the server sends it, with the seven digits of float32. @param {number} x */
const rounded = (x) => Number(x.toPrecision(7));

/**
 * Return the float64 numbers that the file holds as base64; the zeros at their end are not in it.
 * @param {PackedNumbers} packed
 */
function numbersOf({ base64, length }) {
  const whole = new Float64Array(length);
  whole.set(new Float64Array(decodeBase64(base64)));
  return Array.from(whole);
}

/** JSON has no infinities: the API sends "-inf", "inf" and "nan". @param {number} x */
const asJson = (x) => (Number.isFinite(x) ? x : String(x).toLowerCase().replace("inity", ""));

/**
 * Return the steps of a trace; each is packed as numbers, or as a change of the step before.
 * @param {({name: string, formula: string} & (PackedNumbers | {times: number} | {hidden: [number,
 *   number][]}))[]} packed
 */
function stepsOf(packed) {
  /** @type {number[]} */
  let numbers = [];
  return packed.map((step) => {
    if ("times" in step) numbers = numbers.map((x) => x * step.times);
    else if ("hidden" in step)
      numbers = numbers.map((x, at) =>
        step.hidden.some(([start, stop]) => at >= start && at < stop) ? -Infinity : x,
      );
    else numbers = numbersOf(step);
    return { name: step.name, formula: step.formula, numbers: numbers.map(asJson) };
  });
}

const SAVED = "this file holds only what was shown when it was saved";

/**
 * Answer requests from what an exported file holds; `absent` is said of all others.
 * @param {Record<string, any>} answers
 * @param {string} [absent]
 * @returns {Transport}
 */
export const fileTransport = (answers, absent = SAVED) => {
  /** @type {(path: string, query?: Query) => Promise<any>} */
  const find = async (path, query) => {
    const answer = answers[answerKey(path, query)];
    if (answer === undefined) throw new Failure(absent, "absent");
    if (answer.error) throw new Failure(answer.error.message, answer.error.code);
    return answer;
  };
  /**
   * Put a trace together again: keys and values are stored once for a head, the stream once for a
   * query.
   * @type {(path: string, query?: Query) => Promise<any>}
   */
  const inflate = async (path, query) => {
    const trace = await find(path, query);
    const { l, h, i } = trace;
    const base = path.replace(/trace$/, "");
    const shared = await find(`${base}shared`, { l, h, i: 0 });
    const stream = await find(`${base}stream`, { l, h: 0, i }).catch(() => null);
    const [key, value, [own]] = [
      rowsOf(shared.key),
      rowsOf(shared.value),
      rowsOf(trace.query) ?? [],
    ];
    const dot = trace.terms === null;
    return {
      ...trace,
      keys: Array.from({ length: trace.n_k }, (_, at) => at),
      tokens: (await find(`${base}tokens`, { l, axis: "k" })).tokens,
      query: own,
      ...{ key, value },
      stream: stream && { before: rowsOf(stream.before)?.[0], after: rowsOf(stream.after)?.[0] },
      ...(dot && {
        factors: { query: own, key },
        terms: key?.map((row) => row.map((x, m) => x * own[m])),
      }),
      steps: stepsOf(trace.steps),
      context: trace.context && numbersOf(trace.context).map(asJson),
      rest: { keys: 0, weight: 0, context: null },
    };
  };
  /**
   * Return the answer about the same run at another path.
   * @type {(path: string, name: string, query?: Query) => Promise<any>}
   */
  const beside = (path, name, query) => find(path.replace(/\/\w+$/, name), query);
  /**
   * Return the weights between words of an attention: a matrix for each head.
   * @type {(path: string, l: number) => Promise<{words: any, heads: number[], matrices:
   *   number[][][]}>}
   */
  const findWords = async (path, l) => {
    const { weights, heads, ...words } = await beside(path, "/words", { l });
    const rows = /** @type {number[][]} */ (rowsOf(weights));
    const n = words.rows.length;
    return {
      words,
      heads,
      matrices: heads.map((/** @type {any} */ _, /** @type {number} */ at) =>
        rows.slice(at * n, at * n + n),
      ),
    };
  };
  /**
   * @type {(path: string, query: any) => Promise<{trace: Trace, step: (name: string) =>
   *   JsonNumber[] | undefined}>}
   */
  const findTrace = async (path, { l, h, i }) => {
    const trace = await inflate(path.replace(/cells?$/, "trace"), { l, h, i });
    return {
      trace,
      step: (name) => trace.steps.find((/** @type {any} */ one) => one.name === name)?.numbers,
    };
  };
  /**
   * @type {Record<string, (path: string, query: any) => Promise<any>>} what the file holds in
   *   another form
   */
  const unpacked = {
    trace: inflate,
    async heads(path, query) {
      const found = await find(path, query);
      if (found.maps[0].share) return found;
      const { matrices } = await findWords(path, query.l);
      /** @type {(map: any, at: number) => any} */
      const withShare = (map, at) => ({
        ...map,
        share: matrices[at].map((row) => row.map(rounded)),
      });
      return { ...found, maps: found.maps.map(withShare) };
    },
    async alignment(path, { l, h }) {
      const { words, heads, matrices } = await findWords(path, l);
      const chosen = h === "mean" ? matrices : [matrices[heads.indexOf(h)]];
      /** @type {(i: number, j: number) => number} */
      const mean = (i, j) => chosen.reduce((total, one) => total + one[i][j], 0) / chosen.length;
      return {
        l,
        h,
        ...words,
        weights: chosen[0].map((row, i) => row.map((_, j) => rounded(mean(i, j)))),
      };
    },
    async perspectives(path, { l, i }) {
      const { layers, heads, pairs } = await find(path, { l });
      const word = (await beside(path, "/tokens", { l, axis: "q" })).words?.[i] ?? i;
      const found = await Promise.all(
        layers.map((/** @type {number} */ layer) => findWords(path, layer)),
      );
      const rows = found.flatMap(({ matrices }) =>
        matrices.map((/** @type {number[][]} */ one) => one[word].map(rounded)),
      );
      const { rows: names, columns } = found[0].words;
      /** @type {(one: any, at: number) => any} */
      const withWeights = (one, at) => ({ ...one, weights: rows[at] });
      return { l, i, word, names, columns, heads: heads.map(withWeights), pair: pairs[word] };
    },
    async cell(path, query) {
      const { trace, step } = await findTrace(path, query);
      const at = trace.keys.indexOf(query.j);
      const dot = step("scores")?.[at];
      return {
        ...{
          l: query.l,
          h: query.h,
          i: query.i,
          j: query.j,
          query: trace.token,
          key: trace.tokens[at],
        },
        ...{ visible: step("masked")?.[at] !== "-inf", dot, scaled: step("scaled")?.[at] ?? dot },
        ...{ lse: trace.lse, p: step("weights")?.[at] },
      };
    },
    async cells(path, query) {
      const { step } = await findTrace(path, query);
      const { l, h, i, j } = query;
      const masked = step("masked");
      const p = step("weights")?.slice(j, j + 32);
      return {
        l,
        h,
        i,
        j,
        p: p?.map((weight, at) => (masked?.[j + at] === "-inf" ? null : weight)),
      };
    },
  };
  return {
    canRun: false,
    ask: (path, query) => (unpacked[path.split("/").at(-1) ?? ""] ?? find)(path, query),
    async bytes(path, query) {
      const answer = await find(path, query);
      return {
        buffer: pictureBytes(answer),
        exact: Boolean(answer.exact),
        samples: answer.samples,
      };
    },
  };
};
