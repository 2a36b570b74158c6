/** The stage of each step of the walk: its tokens, vectors, scores or sums. */
import { useMemo } from "preact/hooks";
import { Cells } from "../../parts/cells.jsx";
import { signedColour } from "../../parts/colour.js";
import { Matrix } from "../../parts/matrix.jsx";
import { clamp, cosine, count, full, largest, percent, short, sum } from "../../parts/numbers.js";
import { visible } from "../../parts/text.js";
import { SignedScale, Vector } from "../../parts/vector.jsx";
import { Live } from "./live_result.jsx";

/** The text as the model reads it, with positions. @param {StepProps} props */
export function Tokens({ words, place, point }) {
  return (
    <ol class="pieces">
      {words.tokens.map((token, at) => (
        <li
          class={words.start + at === place ? "chosen" : ""}
          onPointerEnter={() => point(words.start + at)}
        >
          <b>{visible(token)}</b>
          <small>position {count(words.start + at)}</small>
        </li>
      ))}
    </ol>
  );
}

const LINE = 64; // numbers in a line

/**
 * A long vector, in lines of 64 numbers.
 * @param {{numbers: number[], name: string, theme: Theme, marked: number | null, point: (m: number)
 *   => void}} props
 */
function Lines({ numbers, name, ...rest }) {
  const lines = Array.from({ length: Math.ceil(numbers.length / LINE) }, (_, at) =>
    numbers.slice(at * LINE, (at + 1) * LINE),
  );
  const most = largest(numbers);
  return (
    <div class="stack" style={{ gap: "6px" }}>
      {lines.map((line, at) => (
        <div class="strip">
          <span class="of soft name">
            {at * LINE}–{at * LINE + line.length - 1}
          </span>
          <div style={{ width: `${(100 * line.length) / Math.min(LINE, numbers.length)}%` }}>
            <Vector
              numbers={line}
              name={`${name}, from ${at * LINE}`}
              first={at * LINE}
              most={most}
              {...rest}
            />
          </div>
        </div>
      ))}
    </div>
  );
}

/**
 * The vector that this layer reads; of a worked example, its matrices, which can be changed.
 * @param {StepProps} props
 */
export function Embedding({ trace, row, m, point, theme, cells }) {
  if (cells.run.example)
    return (
      <div class="beside-cells">
        <Cells {...cells} />
        <Live trace={trace} row={row} theme={theme} />
      </div>
    );
  const numbers = trace.stream.before;
  return (
    <div class="stack">
      <Lines
        numbers={numbers}
        name={`x of ${visible(trace.token)}`}
        theme={theme}
        marked={m}
        point={point}
      />
      <SignedScale
        most={largest(numbers)}
        theme={theme}
        words={`the ${count(numbers.length)} numbers of “${visible(trace.token)}” in this layer`}
      />
    </div>
  );
}

/** The height of a row in pixels, if n rows are shown. @type {(n: number) => number} */
const rowHeight = (n) => clamp(Math.floor(420 / n), 2, 22);

/** Query, keys and values; query and keys share one scale of colours. @param {StepProps} props */
export function Projections({ trace, row, m, point, theme }) {
  const q = trace.query;
  const k = trace.key;
  const v = trace.value;
  const most = useMemo(() => largest([...q, ...k.flat()]), [trace]);
  const mostValue = useMemo(() => (v ? largest(v.flat()) : 0), [trace]);
  const keyColour = useMemo(
    () => (/** @type {number} */ x) => signedColour(x / most, theme),
    [most, theme],
  );
  const valueColour = useMemo(
    () => (/** @type {number} */ x) => signedColour(x / mostValue, theme),
    [mostValue, theme],
  );
  /** @param {string} name */
  const at = (name) => (m?.of === name ? m.at : null);
  return (
    <div class="stack projections">
      <div>
        <h3>
          <span class="q">q</span>, the query of “{visible(trace.token)}”
        </h3>
        <div class="above-keys">
          <span class="q">{visible(trace.token)}</span>
          <Vector
            numbers={q}
            name={`query of ${visible(trace.token)}`}
            theme={theme}
            most={most}
            marked={at("q")}
            point={(x) => point({ of: "q", at: x })}
          />
        </div>
      </div>
      <div>
        <h3>
          <span class="k">k</span>, the key of each token
        </h3>
        <div style={{ marginTop: "8px" }}>
          <Matrix
            rows={k}
            labels={row.tokens}
            name="keys"
            colour={keyColour}
            cell={rowHeight(k.length)}
            at={at("k")}
            point={(a, b) => point({ of: "k", at: [a, b] })}
          />
        </div>
      </div>
      <SignedScale most={most} theme={theme} words="q and k on one scale" />
      {v && (
        <>
          <div>
            <h3>
              <span class="v">v</span>, the value of each token
            </h3>
            <div style={{ marginTop: "8px" }}>
              <Matrix
                rows={v}
                labels={row.tokens}
                name="values"
                colour={valueColour}
                cell={rowHeight(v.length)}
                at={at("v")}
                point={(a, b) => point({ of: "v", at: [a, b] })}
              />
            </div>
          </div>
          <SignedScale most={mostValue} theme={theme} />
        </>
      )}
    </div>
  );
}

const SHOWN = 20;

/**
 * Each value times its weight, for the 20 largest weights, and below them the sum.
 * @param {StepProps} props
 */
export function Sum({ trace, row, m, point, theme }) {
  const order = useMemo(
    () =>
      row.weights
        .map((_, at) => at)
        .sort((a, b) => row.weights[b] - row.weights[a])
        .slice(0, SHOWN)
        .sort((a, b) => a - b),
    [row],
  );
  const parts = useMemo(
    () => row.weights.map((w, at) => trace.value[at].map((x) => w * x)),
    [trace],
  );
  const others = useMemo(() => {
    const all = trace.value[0].map(
      (_, feature) =>
        sum(parts.map((part, at) => (order.includes(at) ? 0 : part[feature]))) +
        (trace.rest.context?.[feature] ?? 0),
    );
    return { many: row.tokens.length - order.length + trace.rest.keys, all };
  }, [parts, order]);
  const most = useMemo(() => largest([...parts.flat(), ...trace.context]), [parts]);
  /**
   * @type {(name: string, weight: string, numbers: number[], kind: string, bars?: boolean) => any}
   */
  const strip = (name, weight, numbers, kind, bars = false) => (
    <>
      <span class={`name ${kind}`}>
        {name}
        <br />
        <span class="of soft">{weight}</span>
      </span>
      <Vector
        numbers={numbers}
        name={name}
        theme={theme}
        most={most}
        marked={m}
        point={point}
        bars={bars}
      />
    </>
  );
  return (
    <div class="stack">
      <div class="strip">
        {order.map((at) =>
          strip(visible(row.tokens[at]), percent(row.weights[at]), parts[at], "k"),
        )}
        {others.many > 0 && strip(`${count(others.many)} others`, "", others.all, "soft")}
        <span style={{ gridColumn: "1 / -1", borderTop: "1.5px solid", margin: "6px 0 4px" }} />
        {strip("context", "Σ", trace.context, "", true)}
      </div>
      <SignedScale most={most} theme={theme} words="weight × value, all on one scale" />
    </div>
  );
}

/**
 * The context, its heaviest parts, and how far the page’s own sum differs from it.
 * @param {StepProps} props
 */
export function Context({ trace, row, m, point, theme }) {
  const recomputed = useMemo(
    () =>
      trace.context.map(
        (_, feature) =>
          sum(row.weights.map((w, at) => w * trace.value[at][feature])) +
          (trace.rest.context?.[feature] ?? 0),
      ),
    [trace],
  );
  const difference = largest(recomputed.map((x, feature) => x - trace.context[feature]));
  const heaviest = row.tokens
    .map((token, at) => ({
      token,
      weight: row.weights[at],
      cosine: cosine(trace.context, trace.value[at]),
    }))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, 6);
  return (
    <div class="stack">
      <div class="strip">
        <span class="name">context</span>
        <Vector
          numbers={trace.context}
          name="context"
          theme={theme}
          bars={true}
          marked={m}
          point={point}
        />
      </div>
      <SignedScale
        most={largest(trace.context)}
        theme={theme}
        words={`${trace.context.length} numbers: the output of this head for “${visible(trace.token)}”`}
      />
      <div class="card">
        <h3>Its largest parts</h3>
        <table class="pairs">
          <thead>
            <tr>
              <th scope="col">key</th>
              <th scope="col">weight</th>
              <th scope="col">cos(context, value)</th>
            </tr>
          </thead>
          <tbody>
            {heaviest.map((one) => (
              <tr>
                <td class="k">{visible(one.token)}</td>
                <td title={full(one.weight)}>{short(one.weight)}</td>
                <td title={full(one.cosine)}>{short(one.cosine)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="checked">
        Σ weight × value, computed again by this page, differs from the context above by at most{" "}
        {short(difference, 2)}.
      </p>
    </div>
  );
}
