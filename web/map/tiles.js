/** Tiles of one head: asked for as they are wanted, at most six at a time; the last 192 are kept. */

const AT_ONCE = 6;
const KEPT = 192;

export class Tiles {
  /** @param {(path: string, query: object, signal: AbortSignal) => Promise<{buffer: ArrayBuffer, exact: boolean, samples: number}>} bytes */
  constructor(bytes, arrived) {
    this.bytes = bytes;
    this.arrived = arrived;
    this.kept = new Map();
    this.asking = new Map();
    this.failed = new Map();
    this.wanted = [];
  }

  get(key) {
    const tile = this.kept.get(key);
    if (tile) {
      this.kept.delete(key);
      this.kept.set(key, tile);
    }
    return tile;
  }

  /** These, in this order, each with as much effort as it says, and nothing else: what was asked for and is wanted no more is given up. */
  want(all) {
    this.wanted = all;
    const keys = new Set(all.map((one) => one.key));
    for (const [key, { abort }] of this.asking) if (!keys.has(key)) abort.abort();
    this.#next();
  }

  get waiting() {
    return this.wanted.filter(({ key }) => this.asking.has(key)).length;
  }

  close() {
    this.want([]);
    this.arrived = () => {};
  }

  #next() {
    for (const { key, path, query, read, effort = 1 } of this.wanted) {
      if (this.asking.size >= (effort > 1 ? 1 : AT_ONCE)) return; // whoever moves on does not wait behind what is refined
      const tile = this.kept.get(key);
      const enough = tile && (tile.exact || tile.effort >= effort);
      if (enough || this.asking.has(key) || (this.failed.get(key) ?? 0) > Date.now()) continue;
      const abort = new AbortController();
      this.asking.set(key, { abort });
      this.bytes(path, effort > 1 ? { ...query, effort } : query, abort.signal)
        .then(({ buffer, exact, samples }) => {
          this.kept.set(key, { values: read(buffer), exact, samples, effort });
          if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
        })
        .catch((problem) => {
          if (problem.name === "AbortError") return;
          const pause = problem.code === "busy" ? 500 : 10_000;
          this.failed.set(key, Date.now() + pause);
          setTimeout(() => this.#next(), pause + 50);
        })
        .finally(() => {
          this.asking.delete(key);
          this.arrived();
          this.#next();
        });
    }
  }
}
