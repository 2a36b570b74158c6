/**
 * Fields of the page's state: what each is called in the page's address, and its value at first.
 */

/**
 * A field that holds a number; without an initial value, null until a reader chooses.
 * @type {NumberField}
 */
export const number = (address, initial = null) =>
  /** @type {Field<any>} */ ({ address, initial, isNumber: true, perRun: false });

/**
 * A field that holds a text; without an initial value, null until a reader chooses.
 * @type {TextField}
 */
export const text = (address, initial = null) =>
  /** @type {Field<any>} */ ({ address, initial, isNumber: false, perRun: false });

/**
 * Mark a field that is reset when another run is opened, because it names something inside a run.
 * @template T
 * @param {Field<T>} field
 * @returns {Field<T>}
 */
export const perRun = (field) => ({ ...field, perRun: true });

/** The fields that several screens have. */
export const SHARED = {
  /** The attention that is shown: its place in the run's list, or the layer of an atlas. */
  layer: perRun(number("l")),
  head: perRun(number("h")),
  query: perRun(number("i")),
  key: perRun(number("j")),
  /** A kind of attention, such as "cross", of which the first is shown unless a layer is chosen. */
  kind: perRun(text("kind")),
  /** What makes the run of a sentence, on any server: the model, what it reads, what it writes. */
  model: perRun(text("model")),
  text: perRun(text("text")),
  target: perRun(text("target")),
  /** What-if: the changes of the definition, as the API takes them. */
  edits: perRun(text("edits")),
  /** What is asked of a score or a head, and answered in a panel: "why" or "follows". */
  asked: perRun(text("ask")),
  /** The key with which a score is compared there. */
  than: perRun(number("than")),
  /** 1 shows the pieces of words. */
  pieces: number("pieces", 0),
  /** Features of random vectors on the screen "variance", and of encodings on "positions". */
  features: number("d", 64),
  /** The lesson that is being read, and its caption. */
  lesson: text("card"),
  caption: number("at"),
  /** 1 shows the screen and the caption alone, larger: for a projector. */
  presenting: number("present", 0),
};

/** Return some of the shared fields, for the `fields` of a screen. @type {PickShared} */
export const shared = (...names) =>
  /** @type {any} */ (Object.fromEntries(names.map((name) => [name, SHARED[name]])));
