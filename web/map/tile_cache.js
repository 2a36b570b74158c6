/** Tiles and tracks of one head: requested on demand, at most six at a time; the 192 last used are kept. */

const CONCURRENT = 6;
const CAPACITY = 192;

/**
 * @typedef {{key: string, path: string, query: Query, read: (buffer: ArrayBuffer) => Tile["values"], effort?: number}} TileRequest
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
    /** @type {Map<string, number>} keys of failed requests, and the time in milliseconds before which they wait */
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
   * Replace the list of wanted tiles, the most urgent first; pending requests that are not in the list are aborted.
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
      if (this.pending.size >= (effort > 1 ? 1 : CONCURRENT)) return; // refining one tile must not delay the next view
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
