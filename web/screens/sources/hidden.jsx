/** What the model writes when it cannot see a segment: before and after. */
import { useEffect, useRef } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered } from "../../parts/answered.jsx";
import { count, full, percent, short } from "../../parts/numbers.js";
import { clipped, visible, visibleLines } from "../../parts/text.js";

/**
 * What the model does with a segment hidden; it scrolls into view when a reader hides one.
 * @param {{run: Run, answers: import("../../answers.js").Answers, go: Go, first: number, end:
 *   number, text: string, hidden: {start: number, stop: number}, scroll: boolean}} props  `scroll`
 *   is whether to scroll the new answer into view
 */
export function HiddenSegment({ run, answers, go, first, end, hidden, text, scroll }) {
  const found = useAnswer(answers, `runs/${run.run}/hidden`, { first, end, ...hidden });
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (scroll) element.current?.scrollIntoView({ block: "nearest" });
  }, [Boolean(found.value)]);
  return (
    <section class="card hidden-one" aria-label="what the model writes without it" ref={element}>
      <div class="row spread">
        <h3>
          Without <b class="k">{clipped(text.trim(), 40)}</b>
        </h3>
        <button
          type="button"
          class="button small"
          onClick={() => go({ sources: { hidden: null } }, false)}
        >
          show it again
        </button>
      </div>
      <Answered answer={found}>
        {(/** @type {HiddenAnswer} */ value) => (
          <Compared found={value} gpt={run.output?.kind === "gpt"} />
        )}
      </Answered>
    </section>
  );
}

/**
 * How much more or less likely the answer became, and what the model writes now.
 * @param {{found: HiddenAnswer, gpt: boolean}} props
 */
function Compared({ found, gpt }) {
  const fall = found.before - found.after;
  const { before, after } = found.wrote;
  const times = Math.exp(Math.abs(fall));
  const often =
    times < 100
      ? short(times, 3)
      : times < 1e9
        ? count(Number(times.toPrecision(2)))
        : "over a billion";
  const likely =
    times < 1.005 ? "as likely as before" : `${often} times ${fall > 0 ? "less" : "more"} likely`;
  return (
    <div role="status">
      <dl class="wrote-now">
        <dt>{gpt ? "it went on" : "it wrote"}</dt>
        <dd>{visibleLines((before ?? "…").trim())}</dd>
        <dt>{gpt ? "it goes on" : "it writes now"}</dt>
        <dd>
          <Changed before={(before ?? "").trim()} after={after === null ? null : after.trim()} />
        </dd>
      </dl>
      <p>
        The chosen words are <b>{likely}</b>: their log-probability goes from{" "}
        <span class="figures" title={full(found.before)}>
          {short(found.before)}
        </span>{" "}
        to{" "}
        <span class="figures" title={full(found.after)}>
          {short(found.after)}
        </span>{" "}
        nats, {fall >= 0 ? "a fall" : "a rise"} of{" "}
        <b class="figures" data-fall title={full(fall)}>
          {short(Math.abs(fall))}
        </b>
        .
      </p>
      <table class="pairs">
        <caption class="hidden">the chosen tokens and their probabilities</caption>
        <thead>
          <tr>
            <th scope="col">chosen</th>
            <th scope="col">before</th>
            <th scope="col">after</th>
            <th scope="col">likeliest now</th>
          </tr>
        </thead>
        <tbody>
          {found.tokens.map((token) => (
            <tr>
              <td>{visible(token.text.trim())}</td>
              <td title={full(Math.exp(token.before))}>{percent(Math.exp(token.before))}</td>
              <td
                title={full(Math.exp(token.after))}
                class={token.after < token.before - Math.LN2 ? "now" : ""}
              >
                {percent(Math.exp(token.after))}
              </td>
              <td class="token">{token.instead === null ? "the same" : visible(token.instead)}</td>
            </tr>
          ))}
        </tbody>
        {found.tokens.length > 1 && (
          <tfoot>
            <tr>
              <td>together</td>
              <td title={full(Math.exp(found.before))}>{percent(Math.exp(found.before))}</td>
              <td title={full(Math.exp(found.after))}>{percent(Math.exp(found.after))}</td>
              <td class="soft">the product of all</td>
            </tr>
          </tfoot>
        )}
      </table>
    </div>
  );
}

/**
 * A text, with the words marked that another one does not have.
 * @param {{before: string, after: string | null}} props
 */
function Changed({ before, after }) {
  if (after === null) return <span class="soft">it cannot write with this part hidden</span>;
  if (after === "") return <span class="soft">nothing</span>;
  return (
    <>
      {newWords(before, after).map(([text, isNew]) =>
        isNew ? (
          <mark>{visible(text)}</mark>
        ) : text.trim() ? (
          visible(text)
        ) : text.includes("\n") ? (
          "\n"
        ) : (
          " "
        ),
      )}
    </>
  );
}

/**
 * Return the words of a text and the spaces between them, and whether each is a word that another
 * text does not have.
 * @type {(before: string, after: string) => [string, boolean][]}
 */
export function newWords(before, after) {
  const known = new Set(before.split(/\s+/));
  return after.split(/(\s+)/).map((text) => [text, text.trim() !== "" && !known.has(text)]);
}
