/** Tokens and weights that the map writes: requested when they are first drawn, and drawn again when they arrive. */
import { count } from "../parts/numbers.js";
import { tokenRange } from "../parts/token_range.js";

const CELLS = 32; // weights in one answer to /cells
const CONCURRENT = 6;
const MOST_WAITING = 64;
const MOST_ROWS = 1000;

/**
 * Return `token` and `weight`, which answer at once from what has arrived and request what has not.
 * @param {Transport} transport
 * @param {Run} run
 * @param {() => void} arrived  called after every answer
 */
export function lazyLabels(transport, run, arrived) {
  /** @type {Map<string, string[] | null>} */
  const tokens = new Map();
  /** @type {Map<string, (number | null)[] | null>} */
  const weights = new Map();
  /** @type {{key: string, query: Query}[]} */
  const waiting = [];
  let running = 0;

  /** Fetch the last requested rows first: they are the ones in view. */
  const fetchWeights = () => {
    for (let next; running < CONCURRENT && (next = waiting.pop());) {
      const { key, query } = next;
      running += 1;
      transport
        .ask(`runs/${run.run}/cells`, query)
        .then(
          ({ p }) => weights.set(key, p),
          () => weights.delete(key),
        )
        .finally(() => {
          running -= 1;
          arrived();
          fetchWeights();
        });
    }
  };

  return {
    /**
     * Return the text of a token, or its position until the text has arrived.
     * @param {Attention} attention
     * @param {Axis} axis
     * @param {number} position
     */
    token(attention, axis, position) {
      if (attention.has?.tokens === false) return count(position);
      const range = tokenRange(attention, axis, position);
      const start = range.start ?? 0;
      const key = `${range.l}/${axis}/${start}`;
      if (!tokens.has(key)) {
        tokens.set(key, null);
        transport
          .ask(`runs/${run.run}/tokens`, range)
          .then(
            (answer) => tokens.set(key, answer.tokens),
            () => tokens.set(key, []),
          )
          .finally(arrived);
      }
      return tokens.get(key)?.[position - start] ?? count(position);
    },

    /**
     * Return the weight of query i and key j, or null if it is masked or has not arrived.
     * @param {{l: number, h: number}} query
     * @param {number} i
     * @param {number} j
     */
    weight({ l, h }, i, j) {
      const first = Math.floor(j / CELLS) * CELLS;
      const key = `${l}/${h}/${i}/${first}`;
      if (!weights.has(key)) {
        weights.set(key, null);
        waiting.push({ key, query: { l, h, i, j: first } });
        if (waiting.length > MOST_WAITING) weights.delete(waiting.splice(0, 1)[0].key);
        if (weights.size > MOST_ROWS) weights.clear();
        fetchWeights();
      }
      return weights.get(key)?.[j - first] ?? null;
    },
  };
}
