/**
 * The numbers of a worked example while they are changed: one request at a time, and the last
 * change wins.
 */
import { useEffect, useRef, useState } from "preact/hooks";

/**
 * @typedef {{inputs: Record<string, number[][]>, normalize: string}} Numbers
 * @typedef {{inputs: Record<string, number[][]>, change: (changed: Partial<Numbers>) => void, set:
 *   (name: string, i: number, row: number[]) => void, problem: string | null, report: (problem:
 *   string | null) => void, isPending: boolean}} Live  `inputs` are the newest numbers, whose run is
 *   still made while `isPending`; `set` replaces one row
 */

/**
 * Return the numbers of an example, none of another run, and the functions that change them. Everything that is shown of
 * the run is requested of the new one before that is shown.
 * @param {{run: Run, go: Go, transport: Transport, answers: import("../answers.js").Answers}} props
 * @returns {Live}
 */
export function useLive({ run, go, transport, answers }) {
  const { example } = run;
  const [problem, report] = useState(/** @type {string | null} */ (null));
  const [, render] = useState(0);
  /** What was changed and is not shown yet. @type {{current: Numbers | null}} */
  const wanted = useRef(null);
  const sending = useRef(false);
  const shown = useRef(run.run);
  shown.current = run.run;
  const gone = useRef(false);
  useEffect(() => () => void (gone.current = true), []);

  const own = Object.fromEntries((example?.inputs ?? []).map((one) => [one.name, one.numbers]));
  /** @type {Numbers} */
  const now = wanted.current ?? { inputs: own, normalize: example?.normalize ?? "softmax" };

  const send = async () => {
    if (sending.current) return;
    sending.current = true;
    while (wanted.current && !gone.current) {
      const asked = wanted.current;
      try {
        const made = await transport.send?.("runs", { example: example?.name, ...asked });
        answers.put(`runs/${made.run}`, made);
        await answers.prepare(shown.current, made.run);
        if (gone.current) break;
        if (wanted.current === asked) wanted.current = null;
        report(null);
        go({ run: made.run }, false);
      } catch (failure) {
        if (wanted.current === asked) wanted.current = null;
        report(/** @type {Error} */ (failure).message);
      }
    }
    sending.current = false;
  };
  /** @type {Live["change"]} */
  const change = (changed) => {
    wanted.current = { ...(wanted.current ?? now), ...changed };
    render((n) => n + 1);
    void send();
  };
  /** @type {Live["set"]} */
  const set = (name, i, row) => {
    const { inputs } = wanted.current ?? now;
    const rows = inputs[name].map((old, at) => (at === i ? row : old));
    change({ inputs: { ...inputs, [name]: rows } });
  };
  return { inputs: now.inputs, change, set, problem, report, isPending: wanted.current !== null };
}
