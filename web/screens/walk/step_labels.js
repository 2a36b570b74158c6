/** Labels of the steps, which follow the attention's definition where it is not the usual softmax(q·k / √d). */
import { short } from "../../parts/numbers.js";

/**
 * Return which steps are the usual ones, and the labels of those that may not be; `d` is the length of a key.
 * @param {Trace} trace
 * @param {number} d
 * @returns {{usual: Record<string, boolean>, labels: Record<string, string>}}
 */
export function stepLabels(trace, d) {
  const normaliser =
    trace.steps.find((step) => step.name === "weights")?.formula.match(/^\w+/)?.[0] ?? "softmax";
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
