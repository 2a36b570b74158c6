/**
 * Requests to a notebook's kernel, through anywidget's messages: a reply has the id of its request.
 */
import { Failure, textEntries } from "./http.js";

/**
 * @typedef {{id: number, error?: {message: string, code: string}, body?: any, exact?: boolean,
 *   samples?: number}} Reply
 * @typedef {{on: (event: string, listener: (reply: Reply, buffers?: DataView[]) => void) => void,
 *   send: (message: object) => void, get: (name: string) => string}} WidgetModel
 */

/**
 * Reach the API through the messages of a notebook’s widget.
 * @param {WidgetModel} model
 * @returns {Transport}
 */
export function kernelTransport(model) {
  /**
   * @type {Map<number, {resolve: (answer: {reply: Reply, buffer?: DataView}) => void, reject:
   *   (error: Error) => void}>}
   */
  const pending = new Map();
  let lastId = 0;
  model.on("msg:custom", (reply, buffers) => {
    const request = pending.get(reply.id);
    if (!request) return;
    pending.delete(reply.id);
    if (reply.error) request.reject(new Failure(reply.error.message, reply.error.code));
    else request.resolve({ reply, buffer: buffers?.[0] });
  });

  /**
   * @type {(method: string, path: string, content: object, signal?: AbortSignal) => Promise<{reply:
   *   Reply, buffer?: DataView}>}
   */
  const request = (method, path, content, signal) =>
    new Promise((resolve, reject) => {
      const id = (lastId += 1);
      pending.set(id, { resolve, reject });
      signal?.addEventListener("abort", () => {
        pending.delete(id);
        reject(new DOMException("aborted", "AbortError"));
      });
      model.send({ id, method, path, ...content });
    });
  /** @type {(path: string, query?: Query, signal?: AbortSignal) => ReturnType<typeof request>} */
  const get = (path, query, signal) =>
    request("GET", path, { query: Object.fromEntries(textEntries(query)) }, signal);

  return {
    canRun: true,
    ask: async (path, query, signal) => (await get(path, query, signal)).reply.body,
    async bytes(path, query, signal) {
      const { reply, buffer } = await get(path, query, signal);
      const view = /** @type {DataView<ArrayBuffer>} */ (buffer);
      const bytes = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
      return { buffer: bytes, exact: Boolean(reply.exact), samples: reply.samples ?? 0 };
    },
    async file(run, place, format) {
      const { reply, buffer } = await get(`runs/${run.run}/export`, { ...place, format });
      return new Blob([/** @type {any} */ (buffer) ?? JSON.stringify(reply.body)]);
    },
    async lesson(name) {
      const { buffer } = await get(`handouts/${name}`);
      return new Blob([/** @type {any} */ (buffer)]);
    },
    send: async (path, body) => (await request("POST", path, { body })).reply.body,
  };
}
