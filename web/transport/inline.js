/** Answers that came with the page: an exported file asks nobody. */
import { Failure } from "./http.js";

/** The name of an answer: parameters sorted, those left out that have their usual value. */
export function named(path, query = {}) {
  const usual = { b: "0", fmt: "f16" };
  const said = Object.entries(query)
    .filter(([name, value]) => value !== undefined && value !== null && usual[name] !== String(value))
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
    .join("&");
  return `/${path}${said ? `?${said}` : ""}`;
}

const decoded = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer;

export const inline = (answers) => {
  const found = async (path, query) => {
    const answer = answers[named(path, query)];
    if (answer === undefined) throw new Failure("that is not in this file; it holds what was shown when it was saved", "absent");
    if (answer.error) throw new Failure(answer.error.message, answer.error.code);
    return answer;
  };
  /** Cells are in the walk of their query. */
  const cell = async (path, { l, h, i, j }) => {
    const trace = await found(path.replace(/cell$/, "trace"), { l, h, i });
    const at = trace.keys.indexOf(j);
    const numbers = Object.fromEntries(trace.steps.map((step) => [step.name, step.numbers[at]]));
    return {
      l, h, i, j, query: trace.token, key: trace.tokens[at], visible: numbers.masked !== "-inf",
      dot: numbers.scores, scaled: numbers.scaled ?? numbers.scores, lse: trace.lse, p: numbers.weights,
    };
  };
  const cells = async (path, { l, h, i, j }) => {
    const { steps } = await found(path.replace(/cells$/, "trace"), { l, h, i });
    const [weights, masked] = ["weights", "masked"].map((name) => steps.find((step) => step.name === name)?.numbers);
    return { l, h, i, j, p: weights.slice(j, j + 32).map((p, at) => (masked?.[j + at] === "-inf" ? null : p)) };
  };
  const inWalk = { cell, cells };
  return {
    runs: false,
    ask: (path, query) => (inWalk[path.split("/").at(-1)] ?? found)(path, query),
    async bytes(path, query) {
      const answer = await found(path, query);
      return { buffer: decoded(answer.base64), exact: Boolean(answer.exact), samples: answer.samples };
    },
  };
};
