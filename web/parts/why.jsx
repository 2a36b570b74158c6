/** Why a query looks at a key: one score, split by who wrote what the two read. */
import { useAnswer } from "../answers.js";
import { Answered, headName } from "./answered.jsx";
import { count, full, largest, percent, short, toNumber } from "./numbers.js";
import { SignedBar, signed } from "./signed_bar.jsx";
import { asSentence, clipped, visible } from "./text.js";

/**
 * What authors are, by their names: a sentence for each kind.
 * @type {[RegExp, string, string][]}
 */
const KINDS = [
  [/^word$/, "word", "the vector that the word itself has, its embedding"],
  [/^position$/, "position", "where the word stands in the text"],
  [
    /head \d+\.\d+$/,
    "head 1.2",
    "layer 1, head 2: what it copied here from the words that it looked at",
  ],
  [
    /feed-forward/,
    "feed-forward 0",
    "the network of layer 0, which changes each word without looking at others",
  ],
  [/^biases of norms$/, "biases of norms", "what every token gets, whatever it is"],
  [/^bias of W_O/, "bias of W_O", "what every token gets with the output of an attention"],
  [/^bias of W_[qk]$/, "bias of W_q", "what every query of this head gets"],
  [/^rounding$/, "rounding", "what the model’s own arithmetic lost"],
];

/** What an author is, in a sentence. @param {string} name */
const meaning = (name) => KINDS.find(([pattern]) => pattern.test(name))?.[2];

/** @typedef {import("./asked.jsx").AskedKey} AskedKey */

/**
 * The panel's contents.
 * @param {{run: Run, attention: Attention, h: number, i: number, query: string, chosen: AskedKey,
 *   than: AskedKey | null, others: AskedKey[], compare: (j: number | null) => void, answers:
 *   import("../answers.js").Answers, theme: Theme, edited: boolean, heading: any, goToHead: (place:
 *   {l: number, h: number, i: number}) => void}} props  `chosen` is the key, `than` the one that it
 *   is compared with, and `others` those that it may be; `edited`: whether a what-if is on
 */
export function Why({ run, attention, h, i, answers, heading, goToHead, theme, ...asked }) {
  const { chosen, than, others, compare, edited } = asked;
  const place = { l: attention.l, h, i, j: chosen.j, than: than?.j };
  const found = useAnswer(answers, `runs/${run.run}/why`, place);
  return (
    <Answered answer={found}>
      {(/** @type {WhyAnswer} */ value) => {
        // While another answer is on its way, this one has its own names.
        const own = found.fresh
          ? { query: asked.query, key: chosen.name, other: than?.name ?? null }
          : value;
        const query = <b class="q">{visible(own.query)}</b>;
        const key = <b class="k">{visible(own.key)}</b>;
        const other = value.than === null ? null : <b class="k">{visible(own.other)}</b>;
        const { split } = value;
        const shown = run.attentions[value.l] ?? attention;
        if (!split)
          return (
            <>
              <h2 tabindex={-1} ref={heading}>
                Why this score of {query} and {key}?
              </h2>
              <p role="status">{asSentence(value.reason ?? "")}</p>
            </>
          );
        const authors = [...split.query.authors, ...split.key.authors].map(({ name }) => name);
        const most = largest(
          [split.query, split.key].flatMap((side) => [
            ...side.authors.map((one) => one.value),
            side.others,
          ]),
        );
        const total = [other ? "difference" : "score", split.score];
        const shared = { run, attention: shown, most, theme, total, goToHead };
        return (
          <>
            <h2 tabindex={-1} ref={heading}>
              {other ? (
                <>
                  Why does {query} look at {key} rather than at {other}?
                </>
              ) : (
                <>
                  Why do {query} and {key} score{" "}
                  <span title={full(split.score)}>{short(split.score, 3)}</span>?
                </>
              )}
            </h2>
            <p class="lede">
              {other ? (
                <>
                  The score of {query} and {key}, less that of {query} and {other}. What both have
                  alike cancels: softmax, which sees differences alone, does not see it. Bars to the
                  right speak for {key}, bars to the left for {other}, and either list adds up to
                  the difference.
                </>
              ) : (
                "A score is a sum: each part that was written into the vector of one word, times each " +
                "part of the other’s. Bars to the right raise the score, bars to the left lower " +
                "it, and either list adds up to all of it."
              )}
              {edited ? " This is the model as it is, without the what-if." : ""}
            </p>
            {others.length > 0 && (
              <label class="labelled">
                rather than{" "}
                <select
                  value={than ? String(than.j) : ""}
                  onChange={(event) => {
                    const { value: picked } = event.currentTarget;
                    compare(picked === "" ? null : Number(picked));
                  }}
                >
                  <option value="">no other key</option>
                  {others.map((one) => (
                    <option value={String(one.j)} selected={one === than}>
                      {clipped(one.name, 16)}
                    </option>
                  ))}
                </select>
              </label>
            )}
            <div class="two-panels">
              <Side
                {...shared}
                side={split.query}
                at={value.i}
                fits={(target) => target.n_q === shown.n_q}
                title={<>who wrote what {query} asks with</>}
                notes={[
                  pieceOf(own.query, value.query),
                  value.read !== value.query &&
                    `The model has read ${visible(value.read)}, and writes ${visible(value.query)} next.`,
                ]}
              />
              <Side
                {...shared}
                side={split.key}
                at={value.j}
                fits={(target) => target.n_q === shown.n_k && target.n_k === shown.n_k}
                title={
                  <>
                    who wrote what {key} answers with
                    {other ? <>, less the same of {other}</> : ""}
                  </>
                }
                notes={[pieceOf(own.key, value.key), pieceOf(own.other, value.other)]}
              />
            </div>
            <p class="told">
              In {headName(shown, value.h)}, {visible(split.sentence)}. (One part on another: what
              the first wrote for the word that asks, times what the second wrote for the word that
              answers.) {weightSaid(split, other !== null)}
            </p>
            <details class="products">
              <summary>
                the {split.pairs.length} largest of {count(split.terms)} pairs
              </summary>
              <table class="pairs">
                <thead>
                  <tr>
                    <th scope="col">asked by</th>
                    <th scope="col" class="name">
                      answered by
                    </th>
                    <th scope="col">adds</th>
                  </tr>
                </thead>
                <tbody>
                  {split.pairs.map((pair) => (
                    <tr>
                      <td>{visible(pair.query)}</td>
                      <td class="name">{visible(pair.key)}</td>
                      <td title={full(pair.value)}>{signed(pair.value)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </details>
            <dl class="kinds">
              {KINDS.filter(([pattern]) => authors.some((name) => pattern.test(name))).map(
                ([pattern, name, means]) => (
                  <div>
                    <dt>{authors.find((one) => pattern.test(one) && !/\d/.test(one)) ?? name}</dt>{" "}
                    <dd>{means}</dd>
                  </div>
                ),
              )}
            </dl>
          </>
        );
      }}
    </Answered>
  );
}

/**
 * What the score means for the weight, in a sentence.
 * @param {ScoreSplit} split
 * @param {boolean} isCompared
 */
function weightSaid({ masked, weight }, isCompared) {
  const score = toNumber(masked);
  if (isCompared)
    return Number.isFinite(score)
      ? `After softmax, its weight is ${short(Math.exp(score), 3)} times the other’s.`
      : "";
  return score === -Infinity
    ? "The mask hides this key, so that its weight is 0 all the same."
    : `After softmax, its weight is ${percent(weight)}.`;
}

/**
 * What is said of a word in several pieces, of which one is asked for.
 * @param {string | null} word
 * @param {string | null} piece
 */
const pieceOf = (word, piece) =>
  word !== piece && `Of the pieces of ${visible(word)}, this is ${visible(piece)}.`;

/**
 * The authors of one side, a bar for each; a head is a button that goes there.
 * @param {{side: AuthorSide, title: any, notes: (string | false)[], run: Run, attention: Attention, most: number,
 *   theme: Theme, total: (string | number)[], at: number, fits: (target: Attention) => boolean, goToHead: (place:
 *   {l: number, h: number, i: number}) => void}} props  `at` is the position to go to in a head,
 *   and `fits` tells whether an attention has that position
 */
function Side({ side, title, notes, run, most, theme, total, at, fits, goToHead }) {
  /** @param {AuthorShare} author */
  const nameOf = ({ name, l, h }) => {
    const target = l === null ? undefined : run.attentions[l];
    if (!target || h === null || !fits(target))
      return <span title={meaning(name)}>{visible(name)}</span>;
    return (
      <button
        type="button"
        title={`go to ${headName(target, h)}`}
        onClick={() => goToHead({ l: target.l, h, i: at })}
      >
        {visible(name)}
      </button>
    );
  };
  return (
    <div class="panel">
      <h3>{title}</h3>
      {notes.filter(Boolean).map((note) => (
        <p class="soft">{note}</p>
      ))}
      <table class="ledger authors">
        <thead>
          <tr>
            <th scope="col">written by</th>
            <th scope="col">adds</th>
            <th scope="col" class="share">
              <span class="hidden">as a bar, </span>
              <span class="ends">
                <span>{short(-most, 3)}</span>
                <span>0</span>
                <span>{short(most, 3)}</span>
              </span>
            </th>
          </tr>
        </thead>
        <tbody>
          {side.authors.map((author) => (
            <tr key={author.name}>
              <td class="name">{nameOf(author)}</td>
              <td title={full(author.value)}>{signed(author.value)}</td>
              <td class="share">
                <SignedBar x={author.value} most={most} theme={theme} />
              </td>
            </tr>
          ))}
          {side.left > 0 && (
            <tr>
              <td class="name soft">{count(side.left)} others</td>
              <td title={full(side.others)}>{signed(side.others)}</td>
              <td class="share">
                <SignedBar x={side.others} most={most} theme={theme} />
              </td>
            </tr>
          )}
        </tbody>
        <tfoot>
          <tr>
            <td>{total[0]}</td>
            <td title={full(total[1])}>{short(total[1], 3)}</td>
            <td />
          </tr>
        </tfoot>
      </table>
    </div>
  );
}
