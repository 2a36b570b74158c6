/**
 * Runs outlive their server: what makes a run is kept, and the run is made again where the server
 * does not know it, after a restart or on another machine.
 */
import { Failure } from "./http.js";

/** The names of sentences; "-" stands for the one that the address holds. */
const SENTENCE = /^(s[0-9a-f]{12}|-)$/;

/**
 * What a POST of /runs takes.
 * @typedef {{text?: string, model?: string | null, target?: string | null} & Record<string, any>}
 *   Source
 */

/** A sentence for a model that is not here. */
export class NoModel extends Failure {
  /**
   * @param {Source} source
   * @param {string[]} models  those that are here
   */
  constructor(source, models) {
    super(`the model ${source.model} is not here`, "no-model");
    this.source = source;
    this.models = models;
  }
}

/** @param {string} path */
const runOf = (path) => path.match(/^runs\/([^/]+)/)?.[1] ?? "";

/** Return the last part of a model's name, which may be a folder. @param {string} [name] */
const lastPart = (name) => name?.split("/").at(-1);

/**
 * Return a transport that makes runs again from what is known of them.
 * @param {Transport} transport
 * @returns {Transport}
 */
export function remembering(transport) {
  const send = /** @type {NonNullable<Transport["send"]>} */ (transport.send);
  /** What makes each run, by its name. @type {Map<string, Source>} */
  const sources = new Map();
  /** The facts of the runs that were made here. @type {Map<string, Run>} */
  const facts = new Map();
  /** Runs that are being made. @type {Map<string, Promise<Run>>} */
  const making = new Map();

  /** @type {(run: Run, body: Source) => Run} */
  const note = (run, body) => {
    const { model, text, target } = run;
    const isSentence = run.kind === "sentence" && text !== null;
    sources.set(run.run, isSentence ? { model, text, target } : body);
    facts.set(run.run, run);
    return run;
  };

  /** Return the source with a model that is here. @param {Source} source */
  const withModel = async (source) => {
    if (!source.model) return source;
    /** @type {{models: string[]}} */
    const { models } = await transport.ask("models");
    if (models.includes(source.model)) return source;
    // A folder of the same name may lie elsewhere on this machine.
    const same = models.filter((name) => lastPart(name) === lastPart(source.model ?? ""));
    if (same.length !== 1) throw new NoModel(source, models);
    return { ...source, model: same[0] };
  };

  /** Make a run again, once for all who wait for it. @param {string} name */
  const make = (name) => {
    const pending = making.get(name);
    if (pending) return pending;
    const source = /** @type {Source} */ (sources.get(name));
    const made = withModel(source)
      .then(async (body) => note(await send("runs", body), body))
      .finally(() => making.delete(name));
    making.set(name, made);
    return made;
  };

  /**
   * Return the answer to a request; if the run is unknown, make it, and ask again.
   * @type {<T>(name: string, request: () => Promise<T>) => Promise<T>}
   */
  const answered = async (name, request) => {
    try {
      return await request();
    } catch (problem) {
      const isUnknown = problem instanceof Failure && problem.code === "unknown-run";
      if (!isUnknown || !sources.has(name)) throw problem;
      await make(name);
      return request();
    }
  };

  return {
    ...transport,
    remember({ run, text, model, target }) {
      if (run === null || text === null || !SENTENCE.test(run) || facts.has(run)) return;
      sources.set(run, { text, model, target });
    },
    async ask(path, query, signal) {
      const name = runOf(path);
      const isWhole = name !== "" && path === `runs/${name}`;
      const known = isWhole ? facts.get(name) : undefined;
      if (known) return known;
      // Of a sentence in an address: whether the server knows it or not, this describes it.
      if (isWhole && sources.has(name)) return make(name);
      return answered(name, () => transport.ask(path, query, signal));
    },
    bytes: (path, query, signal) =>
      answered(runOf(path), () => transport.bytes(path, query, signal)),
    file: (run, place, format) =>
      answered(run.run, () => /** @type {any} */ (transport.file)(run, place, format)),
    send: async (path, body) => note(await send(path, body), body),
  };
}
