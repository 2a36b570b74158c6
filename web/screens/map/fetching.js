/** What the map requests on demand: tiles and tracks of a head, tokens, and single weights. */
import { count } from "../../parts/numbers.js";
import { tokenRange } from "../../parts/words.js";

const CONCURRENT = 6; // requests at a time: as many connections as a browser opens to one server
const CAPACITY = 192;

/**
 * @typedef {{key: string, path: string, query: Query, read: (buffer: ArrayBuffer) =>
 *   Tile["values"], effort?: number}} TileRequest
 */

/**
 * @param {MapQuery} query
 * @param {TilePlace} place
 */
export const tileKey = (query, { z, x, y }) => `${query.l}/${query.h}/${query.how}/${z}/${x}/${y}`;

/**
 * @param {MapQuery} query
 * @param {string} kind
 * @param {number} z
 * @param {number} x
 */
export const trackKey = (query, kind, z, x) => `${query.l}/${query.h}/${kind}/${z}/${x}`;

export class TileCache {
  /**
   * @param {(path: string, query: Query, signal: AbortSignal) => Promise<Bytes>} fetchBytes
   * @param {() => void} arrived  called after every request, successful or not
   */
  constructor(fetchBytes, arrived) {
    this.fetchBytes = fetchBytes;
    this.arrived = arrived;
    /** @type {Map<string, Tile>} */
    this.tiles = new Map();
    /** @type {Map<string, AbortController>} */
    this.pending = new Map();
    /**
     * @type {Map<string, number>} keys of failed requests, and the time in milliseconds before
     *   which they wait
     */
    this.failed = new Map();
    /** @type {TileRequest[]} */
    this.wanted = [];
  }

  /**
   * Return a tile, now the most recently used, if it is in the cache.
   * @param {string} key
   */
  get(key) {
    const tile = this.tiles.get(key);
    if (tile) {
      this.tiles.delete(key);
      this.tiles.set(key, tile);
    }
    return tile;
  }

  /**
   * Replace the list of wanted tiles, the most urgent first; pending requests that are not in the
   * list are aborted.
   * @param {TileRequest[]} requests
   */
  want(requests) {
    this.wanted = requests;
    const keys = new Set(requests.map(({ key }) => key));
    for (const [key, abort] of this.pending) if (!keys.has(key)) abort.abort();
    this.#fetchNext();
  }

  /** How many wanted tiles are being fetched. */
  get waiting() {
    return this.wanted.filter(({ key }) => this.pending.has(key)).length;
  }

  close() {
    this.want([]);
    this.arrived = () => {};
  }

  #fetchNext() {
    for (const { key, path, query, read, effort = 1 } of this.wanted) {
      // refining one tile must not delay the next view
      if (this.pending.size >= (effort > 1 ? 1 : CONCURRENT)) return;
      const tile = this.tiles.get(key);
      const enough = tile && (tile.exact || tile.effort >= effort);
      if (enough || this.pending.has(key) || (this.failed.get(key) ?? 0) > Date.now()) continue;
      const abort = new AbortController();
      this.pending.set(key, abort);
      this.fetchBytes(path, effort > 1 ? { ...query, effort } : query, abort.signal)
        .then(({ buffer, exact, samples }) => {
          this.tiles.set(key, { values: read(buffer), exact, samples, effort });
          if (this.tiles.size > CAPACITY)
            this.tiles.delete(/** @type {string} */ (this.tiles.keys().next().value));
        })
        .catch((problem) => {
          if (problem.name === "AbortError") return;
          const pause = problem.code === "busy" ? 500 : 10_000;
          this.failed.set(key, Date.now() + pause);
          setTimeout(() => this.#fetchNext(), pause + 50);
        })
        .finally(() => {
          this.pending.delete(key);
          this.arrived();
          this.#fetchNext();
        });
    }
  }
}

// Tokens and weights that the map writes: requested when they are first drawn, and drawn again when
// they arrive.

const CELLS = 32; // weights in one answer to /cells
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
