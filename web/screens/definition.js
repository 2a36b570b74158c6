/** What this attention calls its steps: the words and formulas beside them follow its definition, not the usual one. */
import { short } from "../parts/numbers.js";

/** @returns {{usual: {scores: boolean, scaled: boolean, softmax: boolean}, labels: {scores: string, scaled: string, softmax: string}}} */
export function definition(trace, d) {
  const normaliser = trace.steps.find((step) => step.name === "weights").formula.match(/^\w+/)[0];
  const usual = {
    scores: trace.score === "q·k",
    scaled: Math.abs(trace.scale * Math.sqrt(d) - 1) < 1e-9,
    softmax: normaliser === "softmax",
  };
  const labels = {
    scores: trace.score.length <= 8 ? trace.score : "score",
    scaled: usual.scaled ? "÷ √d" : `× ${short(trace.scale, 3)}`,
    softmax: normaliser.replace("_", " "),
  };
  return { usual, labels };
}
