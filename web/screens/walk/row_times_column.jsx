/**
 * One number of a query, key or value, product by product: a row of x times a column of a matrix.
 */
import { useAnswer } from "../../answers.js";
import { Answered } from "../../parts/answered.jsx";
import { css, signedColour } from "../../parts/colour.js";
import { count, dot, full, largest, short, sum } from "../../parts/numbers.js";
import { visible } from "../../parts/text.js";

const SHOWN = 12; // products; of more, the largest are shown
const NEAR = 1e-5; // a number of float32 and its sum in float64

/**
 * @typedef {{of: string, at: number, m: number, token: string, number: number}} Chosen  which
 *   number of a query, key or value
 * @typedef {Pick<ProductAnswer, "matrix" | "normed" | "row" | "column" | "bias" | "sum" |
 *   "turned">} Product
 */

/**
 * The products of the number that is pointed at; of worked examples from their matrices, of models
 * from an answer.
 * @param {StepProps & {h: number, isOnline: boolean}} props
 */
export function RowTimesColumn({ isOnline, ...props }) {
  const chosen = chosenNumber(props);
  if (!chosen) return null;
  if (props.run.example) return <OfExample {...props} chosen={chosen} />;
  return isOnline ? <OfModel {...props} chosen={chosen} /> : null;
}

/** Return the number that is pointed at. @param {StepProps} props @returns {Chosen | null} */
function chosenNumber({ m, trace, row, i }) {
  if (!m?.of) return null;
  if (m.of === "q") return { ...m, at: i, m: m.at, token: trace.token, number: trace.query[m.at] };
  const [j, feature] = m.at;
  const number = (m.of === "k" ? trace.key : trace.value)[j]?.[feature];
  if (number === undefined) return null;
  return { of: m.of, at: row.keys[j], m: feature, token: row.tokens[j], number };
}

/** @param {StepProps & {h: number, chosen: Chosen}} props */
function OfExample({ run, h, chosen, theme }) {
  const { example } = run;
  const x = example?.inputs.find((one) => one.name === "x");
  const row = x?.numbers[(x.rows ?? []).indexOf(chosen.token)] ?? x?.numbers[chosen.at];
  if (!example || !row) return null;
  const names = { q: ["W_q", `W_q of head ${h}`], k: ["W_k"], v: ["W_v", "V"] }[chosen.of] ?? [];
  /** @param {number} one */
  const isIt = (one) => Math.abs(one - chosen.number) <= NEAR * (1 + Math.abs(chosen.number));
  for (const { name, numbers } of example.inputs) {
    const column = numbers.map((line) => line[chosen.m]);
    const isOwn = names.includes(name) && column.length === row.length;
    if (isOwn && isIt(dot(row, column))) {
      const product = { matrix: name, normed: false, row, column, bias: null, turned: false };
      return (
        <Products product={{ ...product, sum: chosen.number }} chosen={chosen} theme={theme} />
      );
    }
  }
  return isIt(row[chosen.m]) ? (
    <p class="soft">
      No matrix stands between: {chosen.of} of {visible(chosen.token)} is its x, as it is.
    </p>
  ) : null;
}

/** @param {StepProps & {h: number, chosen: Chosen}} props */
function OfModel({ run, attention, h, chosen, theme, answers }) {
  const { of, at, m } = chosen;
  const place = of === "q" ? { i: at } : { j: at };
  const found = useAnswer(answers, `runs/${run.run}/product`, {
    ...{ l: attention.l, h, of, m, ...place },
  });
  return (
    <Answered answer={found}>
      {(/** @type {ProductAnswer} */ value) =>
        // Until the next answer is there, the products of the last number are not shown for this.
        value.of === of && value.at === at && value.m === m ? (
          <Products product={value} chosen={chosen} theme={theme} />
        ) : (
          <p class="waiting" />
        )
      }
    </Answered>
  );
}

/**
 * The products as a table, their sum, and what is said of it.
 * @param {{product: Product, chosen: Chosen, theme: Theme}} props
 */
function Products({ product, chosen, theme }) {
  const { matrix, row, column, bias } = product;
  const products = row.map((x, at) => x * column[at]);
  const most = largest(products);
  const order = products
    .map((_, at) => at)
    .sort((a, b) => Math.abs(products[b]) - Math.abs(products[a]))
    .slice(0, SHOWN)
    .sort((a, b) => a - b);
  const others = products.length - order.length;
  const rest = sum(products) - sum(order.map((at) => products[at]));
  return (
    <section class="row-column" aria-label="row times column">
      <h3>
        x of {visible(chosen.token)} · column {chosen.m} of {matrix}
      </h3>
      <table class="pairs">
        <thead>
          <tr>
            <th scope="col">feature</th>
            <th scope="col">x</th>
            <th scope="col">× {matrix.replace(/ .*/, "")}</th>
            <th scope="col">= product</th>
            <td />
          </tr>
        </thead>
        <tbody>
          {order.map((at) => (
            <tr>
              <td>{at}</td>
              <td title={full(row[at])}>{short(row[at], 3)}</td>
              <td title={full(column[at])}>{short(column[at], 3)}</td>
              <td title={full(products[at])}>{short(products[at], 3)}</td>
              <td class="bar-room">
                <svg viewBox="0 0 40 8" width="40" height="8" aria-hidden="true">
                  <rect
                    x={20 + (most ? Math.min(0, 20 * (products[at] / most)) : 0)}
                    width={most ? Math.abs(20 * (products[at] / most)) : 0}
                    height="8"
                    fill={css(signedColour(Math.sign(products[at]), theme))}
                  />
                </svg>
              </td>
            </tr>
          ))}
        </tbody>
        <tfoot>
          {others > 0 && (
            <tr>
              <td colspan={3}>{count(others)} smaller products</td>
              <td title={full(rest)}>{short(rest, 3)}</td>
              <td />
            </tr>
          )}
          {bias !== null && (
            <tr>
              <td colspan={3}>bias</td>
              <td title={full(bias)}>{short(bias, 3)}</td>
              <td />
            </tr>
          )}
          <tr class="total">
            <td colspan={3}>
              sum, {chosen.of}
              <sub>{chosen.m}</sub>
            </td>
            <td title={full(product.sum)}>
              <b>{short(product.sum)}</b>
            </td>
            <td />
          </tr>
        </tfoot>
      </table>
      {product.normed && <p class="soft">x was normalised before the matrix reads it.</p>}
      {product.turned && (
        <p class="soft">
          The position then turns this number into {short(chosen.number)}, together with its
          partner: rotary positions.
        </p>
      )}
    </section>
  );
}
