/** Answers that an exported file holds; it sends no requests. */
import { Failure, textEntries } from "./http.js";

/** @type {Record<string, string>} */
const DEFAULTS = { b: "0", fmt: "f16" };

/**
 * Return the key of an answer in the file: path and sorted parameters, without those at their defaults.
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

/** @param {string} base64 */
const decodeBase64 = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer;

/**
 * Return the bytes of a tile or track. Below the last query a tile is not in the file: NaN in half precision.
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
 * Return the rows of float32 numbers that the file holds as base64.
 * @param {{base64: string, width: number} | null} packed
 * @returns {number[][] | null}
 */
function rowsOf(packed) {
  if (!packed) return null;
  const numbers = new Float32Array(decodeBase64(packed.base64));
  return Array.from({ length: numbers.length / packed.width }, (_, row) =>
    Array.from(numbers.subarray(row * packed.width, (row + 1) * packed.width)),
  );
}

/**
 * @param {Record<string, any>} answers
 * @returns {Transport}
 */
export const fileTransport = (answers) => {
  /** @type {(path: string, query?: Query) => Promise<any>} */
  const find = async (path, query) => {
    const answer = answers[answerKey(path, query)];
    if (answer === undefined) throw new Failure("this file holds only what was shown when it was saved", "absent");
    if (answer.error) throw new Failure(answer.error.message, answer.error.code);
    return answer;
  };
  /** Put a trace together again: keys and values are stored once for a head, the stream once for a query. @type {(path: string, query?: Query) => Promise<any>} */
  const inflate = async (path, query) => {
    const trace = await find(path, query);
    const { l, h, i } = trace;
    const base = path.replace(/trace$/, "");
    const shared = await find(`${base}shared`, { l, h, i: 0 });
    const stream = await find(`${base}stream`, { l, h: 0, i }).catch(() => null);
    const [key, value, [own]] = [rowsOf(shared.key), rowsOf(shared.value), rowsOf(trace.query) ?? []];
    const dot = trace.terms === null;
    return {
      ...trace,
      tokens: (await find(`${base}tokens`, { l, axis: "k" })).tokens,
      query: own,
      ...{ key, value },
      stream: stream && { before: rowsOf(stream.before)?.[0], after: rowsOf(stream.after)?.[0] },
      ...(dot && {
        factors: { query: own, key },
        terms: key?.map((row) => row.map((x, m) => x * own[m])),
      }),
    };
  };
  /** @type {(path: string, query: any) => Promise<{trace: Trace, step: (name: string) => JsonNumber[] | undefined}>} */
  const findTrace = async (path, { l, h, i }) => {
    const trace = await inflate(path.replace(/cells?$/, "trace"), { l, h, i });
    return { trace, step: (name) => trace.steps.find((/** @type {any} */ one) => one.name === name)?.numbers };
  };
  /** @type {Record<string, (path: string, query: any) => Promise<any>>} cells are read from the trace of their query */
  const fromTrace = {
    trace: inflate,
    async cell(path, query) {
      const { trace, step } = await findTrace(path, query);
      const at = trace.keys.indexOf(query.j);
      const dot = step("scores")?.[at];
      return {
        ...{ l: query.l, h: query.h, i: query.i, j: query.j, query: trace.token, key: trace.tokens[at] },
        ...{ visible: step("masked")?.[at] !== "-inf", dot, scaled: step("scaled")?.[at] ?? dot },
        ...{ lse: trace.lse, p: step("weights")?.[at] },
      };
    },
    async cells(path, query) {
      const { step } = await findTrace(path, query);
      const { l, h, i, j } = query;
      const masked = step("masked");
      const p = step("weights")?.slice(j, j + 32);
      return { l, h, i, j, p: p?.map((weight, at) => (masked?.[j + at] === "-inf" ? null : weight)) };
    },
  };
  return {
    canRun: false,
    ask: (path, query) => (fromTrace[path.split("/").at(-1) ?? ""] ?? find)(path, query),
    async bytes(path, query) {
      const answer = await find(path, query);
      return { buffer: pictureBytes(answer), exact: Boolean(answer.exact), samples: answer.samples };
    },
  };
};
