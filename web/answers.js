/** Answers of the API: cached, and shared by the components that request them. */
import { useEffect, useRef, useState } from "preact/hooks";

const CAPACITY = 64; // answers that are kept: those used last

/**
 * @typedef {{promise: Promise<any>, value?: any}} Answer  `value` is there once the promise is
 *   fulfilled
 */

export class Answers {
  /** @param {Transport} transport */
  constructor(transport) {
    this.transport = transport;
    /** @type {Map<string, Answer>} */
    this.cache = new Map();
    /** The requests that components show now. @type {Set<{current: Request[]}>} */
    this.shown = new Set();
  }

  /**
   * Keep an answer that came in another way, such as the facts of a run that was just made.
   * @param {string} path
   * @param {any} value
   */
  put(path, value) {
    this.cache.set(requestKey(path), { promise: Promise.resolve(value), value });
  }

  /**
   * Request of another run whatever is shown of this one, and wait: what changes while it is
   * dragged is then rendered once, and as a whole.
   * @param {string} from  the names of the runs
   * @param {string} to
   */
  async prepare(from, to) {
    const [old, next] = [`runs/${from}`, `runs/${to}`];
    const asked = [...this.shown].flatMap(({ current }) =>
      current.flatMap(({ path, query }) =>
        path && (path === old || path.startsWith(`${old}/`))
          ? [this.ask(next + path.slice(old.length), query).promise]
          : [],
      ),
    );
    // What fails is requested again, and shown, by the component that needs it.
    await Promise.allSettled(asked);
  }

  /**
   * Return the answer to a request, from the cache if it is among the last 64. Failed requests are
   * not cached.
   * @param {string} path
   * @param {Query} [query]
   * @returns {Answer}
   */
  ask(path, query) {
    const key = requestKey(path, query);
    let answer = this.cache.get(key);
    if (answer) this.cache.delete(key);
    else {
      /** @type {Answer} */
      const requested = { promise: this.transport.ask(path, query) };
      requested.promise.then(
        (value) => (requested.value = value),
        () => this.cache.delete(key),
      );
      answer = requested;
    }
    this.cache.set(key, answer);
    if (this.cache.size > CAPACITY)
      this.cache.delete(/** @type {string} */ (this.cache.keys().next().value));
    return answer;
  }
}

/**
 * @param {string} path
 * @param {Query} [query]
 */
const requestKey = (path, query) => path + JSON.stringify(query ?? {});

/**
 * @typedef {{path: string | null | undefined | false, query?: Query}} Request  without a path
 *   nothing is requested
 */

/**
 * Return the answer to a request, and render again when it arrives. While a new request is pending
 * the previous value stays, so that nothing flickers; `slow` becomes true after half a second.
 * @param {Answers} answers
 * @param {Request["path"]} path
 * @param {Query} [query]
 * @returns {Fetched}
 */
export const useAnswer = (answers, path, query) => useAnswers(answers, [{ path, query }])[0];

/**
 * Return the answers to a list of requests, as `useAnswer` does for one. The list may change its
 * length.
 * @param {Answers} answers
 * @param {Request[]} requests
 * @returns {Fetched[]}
 */
export function useAnswers(answers, requests) {
  const [, render] = useState(0);
  /** @type {{current: (Fetched & {key: string | null})[]}} */
  const shown = useRef([]);
  const keys = requests.map(({ path, query }) => path && requestKey(path, query));
  const current = useRef(requests);
  current.current = requests;
  useEffect(() => {
    answers.shown.add(current);
    return () => void answers.shown.delete(current);
  }, [answers]);
  /**
   * Return the answer that is not shown yet; a failed request is not repeated.
   * @type {(at: number) => Answer | null}
   */
  const newAnswer = (at) => {
    const { path, query } = requests[at];
    return path && shown.current[at].key !== keys[at] ? answers.ask(path, query) : null;
  };

  // What is in the cache is shown at once, in this render.
  keys.forEach((key, at) => {
    shown.current[at] ??= { key: null, value: null, error: null, slow: false };
    const answer = newAnswer(at);
    if (key && answer && "value" in answer)
      shown.current[at] = { key, value: answer.value, error: null, slow: false };
  });

  // What is not is requested, and rendered when it arrives, unless the list has changed by then.
  useEffect(() => {
    let active = true;
    /** @type {(at: number, change: Partial<Fetched & {key: string | null}>) => void} */
    const update = (at, change) => {
      if (!active) return;
      shown.current[at] = { ...shown.current[at], ...change };
      render((n) => n + 1);
    };
    const timers = keys.map((key, at) => {
      const answer = newAnswer(at);
      if (!key || !answer) return undefined;
      const timer = setTimeout(() => update(at, { slow: true }), 500);
      /** @type {(value: any, error: Error | null) => void} */
      const finish = (value, error) => {
        clearTimeout(timer);
        update(at, { key, value, error, slow: false });
      };
      answer.promise.then(
        (value) => finish(value, null),
        (error) => finish(null, error),
      );
      return timer;
    });
    return () => {
      active = false;
      timers.forEach(clearTimeout);
    };
  }, [JSON.stringify(keys), answers]);
  return requests.map((_, at) => ({
    ...shown.current[at],
    fresh: shown.current[at].key === keys[at],
  }));
}
