/** The parameters of a request, read and refused as explorer/answers.py does. */
import { Failure } from "../transport/http.js";

const WHOLE_NUMBER = /^-?[0-9]{1,12}$/;

/** @type {(message: string) => Failure} */
export const badParameter = (message) => new Failure(message, "bad-parameter");
/** @type {(message: string) => Failure} */
export const unknown = (message) => new Failure(message, "unknown");
/** @type {(message: string) => Failure} */
export const notKept = (message) => new Failure(message, "not-kept");

/** Whole numbers with commas between thousands. @type {(x: number) => string} */
export const withCommas = (x) => String(x).replace(/\B(?=(\d{3})+$)/g, ",");

export class Params {
  /** @param {Query} [query] */
  constructor(query = {}) {
    this.query = query;
  }

  /** Return a parameter as text, or undefined. @param {string} name */
  text(name) {
    const given = this.query[name];
    return given === null || given === undefined ? undefined : String(given);
  }

  /**
   * Return an integer parameter; without a default the parameter is required.
   * @param {string} name
   * @param {number} [initial]
   */
  number(name, initial) {
    const text = this.text(name);
    if (text === undefined) {
      if (initial === undefined) throw badParameter(`${name}= is missing; it takes a whole number`);
      return initial;
    }
    if (!WHOLE_NUMBER.test(text))
      throw badParameter(
        `${name}="${text.slice(0, 40)}" is not a whole number of at most 12 digits`,
      );
    return Number(text);
  }

  /**
   * Return a parameter that is an index into `count` things.
   * @param {string} name
   * @param {number} count
   * @param {string} what
   * @param {number} [initial]
   */
  index(name, count, what, initial) {
    const number = this.number(name, initial);
    if (number < 0 || number >= count)
      throw unknown(
        `there is no ${what} ${number}; there are ${withCommas(count)}, counted from 0`,
      );
    return number;
  }

  /**
   * Return the range start= to stop=, clipped to `count`.
   * @param {number} count
   */
  span(count) {
    const start = this.number("start", 0);
    const stop = Math.min(this.number("stop", count), count);
    if (start < 0 || start >= Math.max(count, 1) || stop < start)
      throw badParameter(`start=${start}, stop=${stop} is not a range within ${withCommas(count)}`);
    return { start, stop };
  }

  /**
   * Return a parameter that is one of the known words; the first of them is the default.
   * @param {string} name
   * @param {string[]} known
   */
  word(name, known) {
    const word = this.text(name) ?? known[0];
    if (!known.includes(word))
      throw badParameter(`${name}="${word.slice(0, 40)}" is not known; known: ${known.join(", ")}`);
    return word;
  }
}
