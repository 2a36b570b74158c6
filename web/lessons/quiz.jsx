/** The result of all tries, which a student hands in, and the check of a class's codes. */
import { useState } from "preact/hooks";
import { visible } from "../parts/text.js";
import { saveFile } from "../saving/save.js";
import { makeLine, readLine } from "./code.js";
import { LESSONS, TRIES } from "./lessons.js";
import { forget, useProgress } from "./progress.js";

/**
 * Return the result of every try, in the order of a code.
 * @param {import("./progress.js").AllProgress} progress
 * @returns {import("./code.js").Result[]}
 */
const resultsOf = (progress) =>
  TRIES.map(({ name }) => ({
    tried: name in progress,
    isRight: progress[name]?.isRight === true,
    solved: progress[name]?.solved === true,
  }));

/**
 * How many of some tries are solved.
 * @param {import("./progress.js").AllProgress} progress
 * @param {string} [lesson]  the name of one lesson
 */
export function solvedOf(progress, lesson) {
  const asked = TRIES.filter((one) => lesson === undefined || one.lesson.name === lesson);
  return { solved: asked.filter(({ name }) => progress[name]?.solved).length, of: asked.length };
}

/**
 * The result of a student, try by try.
 * @param {{open: (lesson: import("./lessons.js").Lesson, caption: number) => void, lacks: (lesson:
 *   import("./lessons.js").Lesson) => any, busy: boolean, close: () => void}} props
 */
export function Quiz({ open, lacks, busy, close }) {
  const progress = useProgress();
  const results = resultsOf(progress);
  const right = results.filter(({ isRight }) => isRight).length;
  const { solved, of } = solvedOf(progress);
  return (
    <div class="landing quiz">
      <h2>What did you understand?</h2>
      <p class="lede">
        Each lesson asks you to guess, then to try. {solved} of {of} tries are solved; {right} first
        guesses were right.
      </p>
      <p>
        <button type="button" class="button" onClick={close}>
          All lessons
        </button>
      </p>
      <div class="all-tries">
        <table class="pairs">
          <thead>
            <tr>
              <th scope="col">lesson</th>
              <th scope="col">try</th>
              <th scope="col">first guess</th>
              <th scope="col">done</th>
            </tr>
          </thead>
          <tbody>
            {TRIES.map(({ lesson, caption, attempt }, at) => (
              <tr data-try={attempt.name}>
                <td>
                  {LESSONS.indexOf(lesson) + 1}. {lesson.title}
                </td>
                <td>
                  <button
                    type="button"
                    class="button small"
                    disabled={busy || lacks(lesson)}
                    title={lacks(lesson) ? "needs a model that is not here" : undefined}
                    onClick={() => open(lesson, caption)}
                  >
                    {attempt.about}
                  </button>
                </td>
                <td>{results[at].tried ? (results[at].isRight ? "right" : "not right") : "—"}</td>
                <td>{results[at].solved ? "✓ solved" : results[at].tried ? "not yet" : "—"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="below">
        <HandIn results={results} />
        <Check />
      </div>
    </div>
  );
}

/**
 * The code and the file that a student hands in.
 * @param {{results: import("./code.js").Result[]}} props
 */
function HandIn({ results }) {
  const [name, setName] = useState("");
  const [copied, setCopied] = useState(false);
  const line = makeLine(results, name);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(line);
      setCopied(true);
    } catch {
      setCopied(false); // without a permission the line can still be selected
    }
  };
  const save = () => {
    const tries = TRIES.map((one, at) => ({
      try: one.name,
      first_guess: results[at].tried ? results[at].isRight : null,
      solved: results[at].solved,
    }));
    const text = JSON.stringify({ telescope: "quiz", line, tries }, null, 2);
    saveFile(new Blob([`${text}\n`], { type: "application/json" }), "telescope-quiz.json");
  };
  return (
    <section class="card hand-in">
      <h3>Hand it in</h3>
      <label class="labelled">
        your name{" "}
        <input
          type="text"
          class="field"
          maxlength={60}
          autocomplete="name"
          value={name}
          onInput={(event) => {
            setName(event.currentTarget.value);
            setCopied(false);
          }}
        />
      </label>
      <output class="code" aria-label="your code">
        {visible(line)}
      </output>
      <div class="row">
        <button type="button" class="button strong" onClick={copy}>
          {copied ? "copied" : "copy"}
        </button>
        <button type="button" class="button" onClick={save}>
          save as a file
        </button>
        <button type="button" class="button" onClick={forget}>
          start over
        </button>
      </div>
      <p class="soft">
        The code holds the table above. A checksum tells whether code or name were changed. It is no
        exam: everything runs in this browser, and nothing was sent.
      </p>
    </section>
  );
}

/** The codes of a class, one line for each student. */
function Check() {
  const [text, setText] = useState("");
  const lines = text
    .split("\n")
    .filter((line) => line.trim())
    .slice(0, 500);
  return (
    <section class="card">
      <h3>For teachers: check codes</h3>
      <label>
        <span class="soft">one line for each student, as it was handed in</span>
        <textarea
          class="field codes"
          rows={5}
          aria-label="codes, one in each line"
          spellcheck={false}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      {lines.length > 0 && (
        <div class="scroller" tabindex={0} role="region" aria-label="results of the class">
          <table class="pairs checked">
            <thead>
              <tr>
                <th scope="col">name</th>
                <th scope="col">solved</th>
                <th scope="col">first guesses</th>
                <th scope="col">not solved</th>
              </tr>
            </thead>
            <tbody>
              {lines.map((line) => (
                <Checked line={line} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

/** What one line says, or why it says nothing. @param {{line: string}} props */
function Checked({ line }) {
  try {
    const { name, results } = readLine(line, TRIES.length);
    const open = TRIES.filter((_, at) => !results[at].solved).map((one) => one.name);
    return (
      <tr>
        <td>{name ? visible(name) : <span class="soft">no name</span>}</td>
        <td>
          {results.filter(({ solved }) => solved).length} of {results.length}
        </td>
        <td>{results.filter(({ isRight }) => isRight).length} right</td>
        <td class="soft">{open.join(", ") || "—"}</td>
      </tr>
    );
  } catch (problem) {
    return (
      <tr class="refused">
        <td>{visible(line.slice(0, 40))}</td>
        <td colSpan={3}>{/** @type {Error} */ (problem).message}</td>
      </tr>
    );
  }
}
