/**
 * A student's result as a short code, T1-…-…: what was tried, and a checksum of it with the name.
 * `telescope.lessons.read_code` reads it in Python. It is no proof: the page that makes it runs in
 * the student's own browser.
 */

const VERSION = "T1"; // counts on when tries are added or change their order
const DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"; // without I, L, O and U
const CHECKED = 8; // digits of the checksum: 40 bits
const LONGEST_NAME = 60;
const LONGEST_LINE = 400;
const STATES = 5; // of one try: two tries are one digit, 25 of 32

/** @typedef {{tried: boolean, isRight: boolean, solved: boolean}} Result  of one try */

/** Return a text on one line, with single spaces. @param {string} text */
const onOneLine = (text) => text.replace(/[\s\u0000-\u001f\u007f-\u009f\ufeff]+/gu, " ").trim();

/**
 * Return a name as it is checked: on one line, without a colon at its end, and without halves of
 * characters.
 * @param {string} name
 */
export const plainName = (name) =>
  [
    ...onOneLine(name)
      .replace(/\p{Cs}/gu, "\ufffd")
      .normalize("NFC"),
  ]
    .slice(0, LONGEST_NAME)
    .join("")
    .replace(/[ :]+$/u, "");

/**
 * Return the checksum of a text: FNV-1a of its UTF-8, mixed once more.
 * @param {string} text
 */
function checksum(text) {
  const MASK = (1n << 64n) - 1n;
  let hash = 0xcbf29ce484222325n;
  for (const byte of new TextEncoder().encode(text))
    hash = ((hash ^ BigInt(byte)) * 0x100000001b3n) & MASK;
  for (const factor of [0xff51afd7ed558ccdn, 0xc4ceb9fe1a85ec53n])
    hash = ((hash ^ (hash >> 33n)) * factor) & MASK;
  hash ^= hash >> 33n;
  return Array.from({ length: CHECKED }, (_, at) => DIGITS[Number((hash >> BigInt(5 * at)) & 31n)])
    .reverse()
    .join("");
}

/** @type {(payload: string, name: string) => string} */
const checkOf = (payload, name) => checksum(`${VERSION}-${payload}-${name}`);

/** @param {Result} result */
const digitOf = ({ tried, isRight, solved }) =>
  tried ? 1 + Number(isRight) + 2 * Number(solved) : 0;

/**
 * Return the code of results, in the order of the tries.
 * @param {Result[]} results
 * @param {string} name
 */
export function makeCode(results, name) {
  const digits = results.map(digitOf);
  const payload = Array.from(
    { length: Math.ceil(digits.length / 2) },
    (_, at) => DIGITS[STATES * digits[2 * at] + (digits[2 * at + 1] ?? 0)],
  ).join("");
  return `${VERSION}-${payload}-${checkOf(payload, plainName(name))}`;
}

/**
 * Return the line that a student hands in: the name and the code.
 * @type {(results: Result[], name: string) => string}
 */
export const makeLine = (results, name) => {
  const plain = plainName(name);
  return `${plain}${plain && ": "}${makeCode(results, plain)}`;
};

/**
 * Return what a line says; throw an error with one sentence where it is no code, or was changed.
 * @param {string} line
 * @param {number} count  how many tries there are
 * @returns {{name: string, results: Result[]}}
 */
export function readLine(line, count) {
  if (line.length > LONGEST_LINE)
    throw new Error(`the line has more than ${LONGEST_LINE} signs: it is no name with a code`);
  const [, before = "", version, given, check] =
    onOneLine(line).match(/^(?:(.*?)[ :])?([Tt]\w+) ?- ?(\w+) ?- ?(\w+)$/su) ?? [];
  if (check === undefined) throw new Error("there is no code like T1-…-… at the end of the line");
  const name = plainName(before);
  const length = Math.ceil(count / 2);
  if (version.toUpperCase() !== VERSION)
    throw new Error(`the code is of another version of the lessons (not ${VERSION})`);
  const [payload, wanted] = [given, check].map(asDigits);
  if (payload.length !== length || wanted.length !== CHECKED)
    throw new Error(
      `the code is not whole: it has ${payload.length} and ${wanted.length} signs, not ${length} and ${CHECKED}`,
    );
  if (checkOf(payload, name) !== wanted)
    throw new Error("the code does not fit its name: one of them was changed or mistyped");
  const digits = [...payload].flatMap((sign) => {
    const pair = DIGITS.indexOf(sign);
    return [Math.floor(pair / STATES), pair % STATES];
  });
  if (digits.some((digit) => digit < 0 || digit >= STATES) || digits.slice(count).some(Boolean))
    throw new Error("the code holds what no page writes");
  return { name, results: digits.slice(0, count).map(resultOf) };
}

/** @param {string} text */
const asDigits = (text) => text.toUpperCase().replace(/O/g, "0").replace(/[IL]/g, "1");

/** @param {number} digit @returns {Result} */
const resultOf = (digit) => ({
  tried: digit > 0,
  isRight: digit > 0 && (digit - 1) % 2 === 1,
  solved: digit > 2,
});
