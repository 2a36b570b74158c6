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
  /** @type {(path: string, query: any) => Promise<{trace: Trace, step: (name: string) => JsonNumber[] | undefined}>} */
  const findTrace = async (path, { l, h, i }) => {
    const trace = await find(path.replace(/cells?$/, "trace"), { l, h, i });
    return { trace, step: (name) => trace.steps.find((/** @type {any} */ one) => one.name === name)?.numbers };
  };
  /** @type {Record<string, (path: string, query: any) => Promise<any>>} cells are read from the trace of their query */
  const fromTrace = {
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
      return { buffer: decodeBase64(answer.base64), exact: Boolean(answer.exact), samples: answer.samples };
    },
  };
};
