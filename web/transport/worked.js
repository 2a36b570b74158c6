/** Worked examples are computed here, without a request; all else is asked of another transport. */
import { answerAbout } from "../engine/answers.js";
import { encodingsAnswer } from "../engine/encodings.js";
import { exampleOf, openRun, runOf } from "../engine/example_run.js";
import { pictureOf } from "../engine/pictures.js";
import { varianceAnswer } from "../engine/variance.js";
import { Failure } from "./http.js";

/** Return the name of an example's run and what is asked of it, or null. @param {string} path */
function ofExample(path) {
  const [first, run = "", ...rest] = path.split("/");
  const name = decodeURIComponent(run);
  return first === "runs" && exampleOf(name) ? { name, resource: rest.join("/") } : null;
}

/** What needs neither a run nor a model. @type {Record<string, (query?: Query) => any>} */
const TABLES = { variance: varianceAnswer, positions: encodingsAnswer };

/**
 * Answer requests about worked examples and about tables without a model; pass on all others.
 * @param {Transport} transport
 * @returns {Transport}
 */
export const withExamples = (transport) => ({
  ...transport,

  async ask(path, query, signal) {
    const asked = ofExample(path);
    if (asked) return answerAbout(openRun(asked.name), asked.resource, query);
    return Object.hasOwn(TABLES, path) ? TABLES[path](query) : transport.ask(path, query, signal);
  },

  async bytes(path, query, signal) {
    const asked = ofExample(path);
    return asked
      ? pictureOf(openRun(asked.name), asked.resource, query)
      : transport.bytes(path, query, signal);
  },

  async send(path, body) {
    const isExample = path === "runs" && "example" in body && typeof body.example === "string";
    if (isExample) return runOf(body).facts;
    if (transport.send) return transport.send(path, body);
    throw new Failure("this file runs no model; telescope serve does", "absent");
  },
});
