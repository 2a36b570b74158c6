/** Answers to what a screen asks: kept, shared, and waited for with patience. */
import { useEffect, useRef, useState } from "./ui.js";

export class Answers {
  constructor(transport) {
    this.transport = transport;
    this.kept = new Map();
  }

  /** The answer, or the promise of it. The last 64 are kept. */
  ask(path, query) {
    const key = path + JSON.stringify(query ?? {});
    let answer = this.kept.get(key);
    if (answer) this.kept.delete(key);
    else {
      answer = { promise: this.transport.ask(path, query) };
      answer.promise.then((value) => (answer.value = value), () => this.kept.delete(key));
    }
    this.kept.set(key, answer);
    if (this.kept.size > 64) this.kept.delete(this.kept.keys().next().value);
    return answer;
  }
}

/**
 * What was asked for, as soon as it is there. While another answer is on its way the one before stays, so nothing
 * flickers; `slow` says that it takes longer than half a second.
 */
export function useAnswer(answers, path, query) {
  const key = path && path + JSON.stringify(query ?? {});
  const [, draw] = useState(0);
  const now = useRef({ key: null, value: null, error: null, slow: false });
  const known = path && now.current.key !== key ? answers.ask(path, query) : null; // what failed is not asked for again
  if (known && "value" in known) now.current = { key, value: known.value, error: null, slow: false };
  useEffect(() => {
    if (!path || now.current.key === key) return undefined;
    let wanted = true;
    const tell = (change) => {
      if (!wanted) return;
      now.current = { ...now.current, ...change };
      draw((n) => n + 1);
    };
    const timer = setTimeout(() => tell({ slow: true }), 500);
    const done = (change) => {
      clearTimeout(timer);
      tell({ slow: false, ...change });
    };
    answers.ask(path, query).promise.then(
      (value) => done({ key, value, error: null }),
      (error) => done({ key, value: null, error }),
    );
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [key, answers]);
  return { ...now.current, fresh: now.current.key === key };
}
