/**
 * The explanation beside each step, with this query's numbers, and the readout of what is pointed
 * at.
 */
import { argmax, count, full, percent, short, sum } from "../../parts/numbers.js";
import { Term } from "../../parts/term.jsx";
import { visible } from "../../parts/text.js";

/**
 * @typedef {StepProps & {query: any, key: any, seen: number, best: number, d: number, feature:
 *   number | null}} Facts the names of query and key as nodes, how many keys are visible, the key
 *   with the largest weight, and the feature pointed at
 * @typedef {{title: string, prose: any, readout: any}} Explanation
 */

/**
 * Return the explanation of a step.
 * @param {StepProps} props
 * @returns {Explanation}
 */
export function explain(props) {
  const { trace, row, attention, step, j, m } = props;
  const query = <b class="q">{visible(trace.token)}</b>;
  const key = <b class="k">{visible(row.tokens[j])}</b>;
  const seen = row.steps.mask.filter((x) => x !== -Infinity).length;
  return EXPLANATIONS[step]({
    ...props,
    query,
    key,
    seen,
    best: argmax(row.weights),
    d: attention.d_k,
    feature: typeof m === "number" ? m : null,
  });
}

/**
 * Return an equation with a number that is written out in full.
 * @type {(left: any, x: JsonNumber) => any}
 */
const equals = (left, x) => (
  <>
    {left} = <b>{full(x)}</b>
  </>
);
/** Return a factor as it is written after another: negative ones in brackets. @param {number} x */
const bracketed = (x) => (x < 0 ? `(${short(x)})` : short(x));
/** Return what to point at, until something is pointed at. @param {string} text */
const hint = (text) => <span class="soft">{text}</span>;

/** Why scores are divided, as far as it holds for any number of features. */
const MANY =
  "With many features the softmax of undivided scores would give nearly all weight to one key, and " +
  "learn slowly.";

/**
 * Return how queries, keys and values were made: by learnt matrices only in a model.
 * @type {(run: Run, attention: Attention, compares: boolean) => string}
 */
function projections({ example }, { l, formula }, compares) {
  if (!example)
    return compares
      ? "Three learnt matrices multiply every vector."
      : `Learnt matrices make the scores and the values: ${formula}.`;
  const labelled = example.inputs.filter(({ rows }) => rows !== null).map(({ name }) => name);
  const matrices = example.scenes[l].inputs.filter((name) => !labelled.includes(name));
  return matrices.length
    ? `Nothing is learnt here: ${matrices.join(", ")} are small enough to read.`
    : "There are no matrices here: the inputs serve as they are.";
}

/**
 * For each step its title, its text, and what is said of the key or number pointed at.
 * @type {Record<string, (facts: Facts) => Explanation>}
 */
const EXPLANATIONS = {
  tokens: ({ attention, query, m, words }) => ({
    title: "The text in tokens",
    prose: (
      <p>
        A model reads <Term name="token">tokens</Term>, words or pieces of words, each by its id.
        This attention has {count(attention.n_q)} {attention.n_q === 1 ? "query" : "queries"} and{" "}
        {count(attention.n_k)} {attention.n_k === 1 ? "key" : "keys"}. We follow the query {query}.
      </p>
    ),
    readout:
      typeof m === "number" && words.tokens[m - words.start] !== undefined ? (
        <>
          position {count(m)}: <b>{visible(words.tokens[m - words.start])}</b>
        </>
      ) : (
        hint("Point at a token. → goes to the next step.")
      ),
  }),

  embedding: ({ trace, query, feature, cells, attention }) =>
    cells.run.example
      ? {
          title: "The inputs",
          prose: (
            <>
              <p>{cells.run.example.scenes[attention.l].caption}.</p>
              <p>
                Every number can be changed: drag it sideways, or click it and type. All steps are
                computed again at once.
              </p>
            </>
          ),
          readout: cells.run.example.scenes[attention.l].findings.map(
            (/** @type {string} */ line) => (
              <>
                {line}
                <br />
              </>
            ),
          ),
        }
      : {
          title: "A vector for the token",
          prose: (
            <p>
              {query} enters this layer as {count(trace.stream.before.length)} numbers, its place in
              the <Term name="residual stream" />: its <Term name="embedding" />, plus what the
              layers before have added.
            </p>
          ),
          readout:
            feature !== null && feature < trace.stream.before.length
              ? equals(
                  <>
                    x<sub>{feature}</sub>
                  </>,
                  trace.stream.before[feature],
                )
              : hint("Point at a cell to read its number."),
        },

  qkv: ({ trace, row, query, m, run, attention, usual }) => ({
    title: "Query, keys, values",
    prose: (
      <>
        <p>
          {projections(run, attention, usual.scores !== false)} {query} has a <Term name="query" />,
          with which it looks for others, and every token a <Term name="key" />, which queries are
          compared with, and a <Term name="value" />, which is passed on.
        </p>
        {!run.example && (
          <p class="soft">
            x is the input of the head: in most models the vector of the step before, normalised.
            With rotary positions, q and k are rotated by their positions.
          </p>
        )}
      </>
    ),
    readout: !m?.of
      ? hint("Point at a cell to read its number.")
      : m.of === "q"
        ? equals(
            <>
              q<sub>{m.at}</sub>
            </>,
            trace.query[m.at],
          )
        : equals(
            <>
              {m.of}
              <sub>{m.at[1]}</sub> of <b>{visible(row.tokens[m.at[0]])}</b>
            </>,
            (m.of === "k" ? trace.key : trace.value)[m.at[0]]?.[m.at[1]],
          ),
  }),

  scores: ({ trace, row, query, key, j, feature, usual }) => ({
    title: "The scores",
    prose: usual.scores ? (
      <>
        <p>
          The <Term name="score" /> of {query} and {key} is a <Term name="dot product" />: multiply
          feature by feature and add up. Here {trace.terms[j].length} products sum to{" "}
          <b>{short(row.steps.scores[j])}</b>.
        </p>
        <p class="soft">
          A score is large where both vectors have large numbers of the same sign in the same
          features.
        </p>
      </>
    ) : (
      <p>
        The score of {query} and {key} is the sum of {trace.terms[j].length} numbers:{" "}
        <b>{short(row.steps.scores[j])}</b>.
      </p>
    ),
    readout:
      feature === null || feature >= trace.terms[j].length ? (
        equals(
          <>
            s({query}, {key})
          </>,
          row.steps.scores[j],
        )
      ) : (
        <>
          product {feature} of {trace.terms[j].length}
          <br />
          {trace.factors ? (
            <>
              <span class="q">{full(trace.factors.query[feature])}</span> ×{" "}
              <span class="k">{full(trace.factors.key[j][feature])}</span>
              <br />
            </>
          ) : (
            ""
          )}
          = <b>{full(trace.terms[j][feature])}</b>
          <br />
          sum so far: {short(sum(trace.terms[j].slice(0, feature + 1)))}
        </>
      ),
  }),

  scaled: ({ trace, row, key, j, d, usual }) => ({
    title: usual.scaled ? "Scaled down" : "Scaled",
    prose: usual.scaled ? (
      <p>
        A sum of {d} random products is spread √{d} times as widely as one product. Every score is
        therefore multiplied by 1/√{d} = <b>{short(trace.scale)}</b>. {MANY} The bars keep the scale
        of q·k, so that they shrink.
      </p>
    ) : (
      <p>
        Every score is multiplied by <b>{short(trace.scale)}</b>.
      </p>
    ),
    readout: (
      <>
        {short(row.steps.scores[j])} × {full(trace.scale)}
        <br />
        {equals(key, row.steps.scaled[j])}
      </>
    ),
  }),

  capped: ({ row, key, j }) => ({
    title: "Capped",
    prose: <p>Every score is kept within a fixed range: {row.formulas.capped}.</p>,
    readout: equals(key, row.steps.capped[j]),
  }),

  biased: ({ row, key, j }) => ({
    title: "With a bias",
    prose: (
      <p>
        A <Term name="bias" /> that depends on positions alone is added: {row.formulas.biased}.
      </p>
    ),
    readout: equals(key, row.steps.biased[j]),
  }),

  mask: ({ row, query, key, j, seen, trace }) => ({
    title: "Which keys are visible",
    prose: row.masks ? (
      <>
        <p>
          With this <Term name="mask" />, {query} may attend to {count(seen)} of the{" "}
          {count(row.tokens.length)} keys shown. The others become −∞, which the softmax turns into
          a weight of exactly zero.
        </p>
        <p class="figures soft">{row.formulas.masked}</p>
      </>
    ) : (
      <p>
        This attention masks nothing: {query} may attend to all {count(trace.n_k)} keys, so no score
        changes. In a decoder, the scores of later tokens would be −∞.
      </p>
    ),
    readout:
      row.steps.mask[j] === -Infinity ? <>{key} is masked: −∞</> : equals(key, row.steps.mask[j]),
  }),

  softmax: ({ row, query, key, j, best, seen, trace, usual }) => ({
    title: "Scores become shares",
    prose: (
      <>
        <p>
          {usual.softmax ? (
            <>
              <Term name="softmax">The exponential</Term> makes every score positive; dividing by
              the sum makes them <Term name="share">shares</Term> of one.
            </>
          ) : (
            "Every score is divided by the sum of all, which makes them shares of one."
          )}{" "}
          {query} gives most, <b>{percent(row.weights[best])}</b>, to{" "}
          <b class="k">{visible(row.tokens[best])}</b>. Uniform attention would give{" "}
          {percent(1 / (seen + trace.rest.keys))} to each{row.split ? " word" : ""}.
        </p>
        {trace.sink !== null && trace.sink !== undefined ? (
          <p>
            A learnt <Term name="sink" /> takes a share as well, so the weights sum to less than
            one.
          </p>
        ) : (
          ""
        )}
      </>
    ),
    readout: (
      <>
        {equals(
          <>
            w({query}, {key})
          </>,
          row.weights[j],
        )}
        {row.members[j].length > 1 ? (
          <>
            <br />
            <span class="soft">the sum of its {row.members[j].length} pieces</span>
          </>
        ) : trace.lse === null ? (
          ""
        ) : (
          <>
            <br />
            <span class="soft">
              = exp({short(row.steps.mask[j])} − {bracketed(trace.lse)}); ln Σ eˢ ={" "}
              {full(trace.lse)}
            </span>
          </>
        )}
      </>
    ),
  }),

  sum: ({ trace, row, query, feature }) => {
    const parts =
      feature === null || feature >= trace.context.length
        ? null
        : row.weights
            .map((w, at) => [w, trace.value[at][feature], at])
            .sort((a, b) => Math.abs(b[0] * b[1]) - Math.abs(a[0] * a[1]));
    return {
      title: "A mixture of values",
      prose: (
        <p>
          Every <b class="v">value</b> is multiplied by its key’s weight, and the products are added
          up. The sum is the <Term name="context" /> of {query}.
        </p>
      ),
      readout: !parts ? (
        hint("Point at a column to see the products that it sums.")
      ) : (
        <>
          feature {feature}
          <br />
          {parts.slice(0, 5).map(([w, x, at]) => (
            <>
              {short(w)} × {short(x)} = {short(w * x)}{" "}
              <span class="k">{visible(row.tokens[at])}</span>
              <br />
            </>
          ))}
          {parts.length > 5 ? (
            <>
              <span class="soft">and {count(parts.length - 5 + trace.rest.keys)} more</span>
              <br />
            </>
          ) : (
            ""
          )}
          Σ = <b>{full(trace.context[feature ?? 0])}</b>
        </>
      ),
    };
  },

  after: ({ query }) => ({
    title: "After the head",
    prose: (
      <>
        <p>
          The outputs of all heads are put side by side and multiplied by W<sub>O</sub>. The result
          is <b>added</b> to the vector that {query} had before, so that nothing is lost, and the
          sum is normalised.
        </p>
        <p>
          A <Term name="feed-forward">feed-forward network</Term> then changes every word by itself,
          without looking at the others. What comes out is what the next layer reads; after the last
          one, it becomes the <Term name="logit">logits</Term>.
        </p>
      </>
    ),
    readout: hint("Lengths, not every number: how much each part adds."),
  }),

  context: ({ trace, query, feature, run }) => ({
    title: "The output of the head",
    prose: (
      <p>
        This vector is what the head returns for {query}.{" "}
        {run.example
          ? "In a model it would be put beside those of the other heads, multiplied by one more matrix, and added to the vector of the word."
          : "It is concatenated with those of the other heads, multiplied by one more matrix, and added to the vector of the word."}
      </p>
    ),
    readout:
      feature !== null && feature < trace.context.length
        ? equals(
            <>
              c<sub>{feature}</sub>
            </>,
            trace.context[feature],
          )
        : hint("Point at a bar to read its number."),
  }),
};
