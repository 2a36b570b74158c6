/**
 * Draw one of the tokens that the screen Output shows, or write on: token after token, by the
 * numbers of a seed, so that a link draws the same again.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import { useAnswer } from "../answers.js";
import { full, percent } from "./numbers.js";
import { visible } from "./text.js";

/** @typedef {{temperature: number, top_k: number, top_p: number}} Settings */
/**
 * @typedef {{tokens: DrawnToken[], ended: string | null, busy: boolean, problem: string | null}}
 *   Written  what was written on so far
 */

const CHUNK = 4; // tokens that are asked for at once: more of them arrive later
const MOST = 480; // tokens of one writing
const LENGTHS = [4, 8, 16, 32, 64]; // words that can be asked for
const TAIL = 400; // characters of a long text that stand in front of what is drawn

/** Return a seed that is easy to read aloud. */
function newSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0] % 100_000;
}

/** How many words a text has. @param {string} text */
const countWords = (text) => text.trim().split(/\s+/).filter(Boolean).length;

/**
 * Return the tokens of the first words, and whether a token of the word after them has arrived.
 * @template {{append: string}} T
 * @param {T[]} tokens
 * @param {number} words
 * @returns {{tokens: T[], enough: boolean}}
 */
export function firstWords(tokens, words) {
  let text = "";
  for (const [at, token] of tokens.entries()) {
    if (/^\s/.test(token.append) && countWords(text) >= words)
      return { tokens: tokens.slice(0, at), enough: true };
    text += token.append;
  }
  return { tokens, enough: false };
}

/**
 * A text with its spaces and line breaks as they are, and other hidden characters spelled out.
 * @param {string} text
 */
const shownText = (text) =>
  text
    .split("\n")
    .map((line) => (line.trim() === "" ? line : visible(line)))
    .join("↵\n");

/**
 * The buttons that draw, the seed, and what was drawn.
 * @param {ScreenProps & {i: number, settings: Settings, before: string}} props  `before` is the
 *   text up to the place that is drawn
 */
export function Drawing({ run, i, settings, before, state, go, answers, transport, openRun }) {
  const { seed, words } = state.output;
  const gpt = run.output?.kind === "gpt";
  const [length, setLength] = useState(words || 16);
  const { written, stop } = useWriting(run, seed, gpt ? words : 0, settings, transport, go);
  const drawn = useAnswer(
    answers,
    transport.send && seed !== null && !words ? `runs/${run.run}/draw` : null,
    { i, seed, ...settings },
  );
  if (!transport.send)
    return <p class="soft">A saved page holds no model that could draw a word.</p>;
  /** @param {number} many */
  const begin = (many) => go({ output: { seed: newSeed(), words: many } }, false);
  return (
    <section class="card drawing" aria-label="draw">
      <div class="row">
        <button type="button" class="button" onClick={() => begin(0)}>
          draw a word
        </button>
        {gpt && (
          <>
            {written.busy ? (
              <button type="button" class="button" onClick={stop}>
                stop
              </button>
            ) : (
              <button type="button" class="button" onClick={() => begin(length)}>
                write on
              </button>
            )}
            <label class="labelled">
              for{" "}
              <select
                aria-label="for how many words"
                value={length}
                onChange={(event) => setLength(Number(event.currentTarget.value))}
              >
                {[...new Set([...LENGTHS, length])]
                  .sort((a, b) => a - b)
                  .map((many) => (
                    <option value={many} selected={many === length}>
                      {many} {many === 1 ? "word" : "words"}
                    </option>
                  ))}
              </select>
            </label>
          </>
        )}
        {seed !== null && <Seed seed={seed} go={go} />}
      </div>
      {!gpt && (
        <p class="soft">
          A translator does not write on: it has written until its sentence ended. Draw at any piece
          to see what it could have chosen there.
        </p>
      )}
      {seed !== null && !words && drawn.error && (
        <p class="failure" role="alert">
          {drawn.error.message}
        </p>
      )}
      {seed !== null && !words && drawn.value && (
        <DrawnOnce answer={/** @type {DrawAnswer} */ (drawn.value)} before={before} />
      )}
      {seed !== null && gpt && words > 0 && (
        <WrittenOn run={run} written={written} transport={transport} openRun={openRun} />
      )}
    </section>
  );
}

/**
 * The seed, which can be typed: the same one draws the same.
 * @param {{seed: number, go: Go}} props
 */
function Seed({ seed, go }) {
  return (
    <label class="labelled">
      seed{" "}
      <input
        type="text"
        inputmode="numeric"
        class="cell"
        style={{ width: "10ch" }}
        value={String(seed)}
        onChange={(event) => {
          const typed = Number(event.currentTarget.value.trim());
          if (Number.isInteger(typed) && typed >= 0 && typed < 1e9)
            go({ output: { seed: typed } }, false);
          else event.currentTarget.value = String(seed);
        }}
      />
    </label>
  );
}

/**
 * One drawn token, and why it is this one.
 * @param {{answer: DrawAnswer, before: string}} props
 */
function DrawnOnce({ answer, before }) {
  const { drawn, seed } = answer;
  return (
    <div role="status">
      <p class="drawn-text">
        {tail(before)}
        <Mark token={drawn} />
      </p>
      <p class="soft">
        The random number of seed {seed} is <span class="figures">{full(drawn.u)}</span>. From the
        likeliest token on, probabilities are added until they exceed it:{" "}
        {drawn.below > 0 ? (
          <>
            the likelier tokens sum to <span class="figures">{full(drawn.below)}</span>, and
            with{" "}
          </>
        ) : (
          "already with "
        )}
        <b>{visible(drawn.text)}</b>, {percent(drawn.p)}, it is{" "}
        <span class="figures">{full(drawn.below + drawn.p)}</span>.
      </p>
    </div>
  );
}

/**
 * The text, and behind it what was drawn, each token marked; it can be run as a text of its own.
 * @param {{run: Run, written: Written, transport: Transport, openRun: ScreenProps["openRun"]}}
 *   props
 */
function WrittenOn({ run, written, transport, openRun }) {
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  const added = written.tokens.map((token) => token.append).join("");
  const read = async () => {
    try {
      const body = { text: `${run.text}${added}`, model: run.model };
      const made = await transport.send?.("runs", body);
      openRun(made.run);
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
  };
  const failed = written.problem ?? problem;
  return (
    <>
      <p class="drawn-text" aria-live={written.busy ? "off" : "polite"} data-busy={written.busy}>
        {tail(run.text ?? "")}
        {written.tokens.map((token, at) => (
          <Mark key={at} token={token} />
        ))}
      </p>
      {failed && (
        <p class="failure" role="alert">
          {failed}
        </p>
      )}
      {!written.busy && (
        <p class="soft" role="status">
          {countWords(added)} {countWords(added) === 1 ? "word" : "words"} in{" "}
          {written.tokens.length} tokens, each marked.{" "}
          {written.ended === "end" && "The model ended the text. "}
          {written.ended === "length" && "The model cannot read a longer text. "}
        </p>
      )}
      {!written.busy && added !== "" && (
        <button type="button" class="button small" onClick={read}>
          run this text
        </button>
      )}
    </>
  );
}

/** Return the end of a long text. @param {string} text */
const tail = (text) => shownText(text.length > TAIL ? `…${[...text].slice(-TAIL).join("")}` : text);

/** A token that was drawn. @param {{token: DrawnToken}} props */
const Mark = ({ token }) => (
  <mark title={`${visible(token.text)}: ${percent(token.p)}; random number ${full(token.u)}`}>
    {shownText(token.append) || visible(token.text)}
  </mark>
);

/**
 * Write words behind a text, a few tokens at a time; changed settings begin again, with the same
 * random numbers.
 * @param {Run} run
 * @param {number | null} seed
 * @param {number} words
 * @param {Settings} settings
 * @param {Transport} transport
 * @param {Go} go
 * @returns {{written: Written, stop: () => void}}
 */
function useWriting(run, seed, words, settings, transport, go) {
  const nothing = { tokens: [], ended: null, busy: false, problem: null };
  const [written, setWritten] = useState(/** @type {Written} */ (nothing));
  const controller = useRef(/** @type {AbortController | null} */ (null));
  /** What is written already, where a reader has stopped it: its words are the new number. */
  const stopped = useRef("");
  /** @param {number} many */
  const keyOf = (many) => JSON.stringify([run.run, seed, many, settings]);
  const key = keyOf(words);
  useEffect(() => {
    if (stopped.current === key) return undefined;
    const own = new AbortController();
    controller.current = own;
    setWritten({ ...nothing, busy: words > 0 });
    if (words > 0 && seed !== null && transport.send)
      writeWords(own.signal).catch((failure) => {
        if (!own.signal.aborted)
          setWritten((now) => ({ ...now, busy: false, problem: failure.message }));
      });
    return () => own.abort();
  }, [key]);
  /** @param {AbortSignal} signal */
  const writeWords = async (signal) => {
    /** @type {DrawnToken[]} */
    let tokens = [];
    for (let more = true; more;) {
      const after = tokens.map((token) => token.id).join(",");
      const query = { after, count: CHUNK, seed: seed ?? 0, ...settings };
      /** @type {WriteAnswer} */
      const answer = await transport.ask(`runs/${run.run}/write`, query, signal);
      if (signal.aborted) return;
      const found = firstWords([...tokens, ...answer.drawn], words);
      tokens = found.tokens;
      more = !found.enough && answer.ended === null && tokens.length < MOST;
      const ended = found.enough ? null : answer.ended;
      setWritten({ tokens, ended, busy: more, problem: null });
    }
  };
  const stop = () => {
    controller.current?.abort();
    const many = countWords(written.tokens.map((token) => token.append).join(""));
    stopped.current = keyOf(many);
    setWritten({ ...written, busy: false });
    go({ output: { words: many, seed: many ? seed : null } }, false);
  };
  return { written, stop };
}
