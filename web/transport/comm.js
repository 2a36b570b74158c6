/** A notebook's kernel, by anywidget's messages: each question has a number, and so has its answer. */
import { Failure } from "./http.js";

export function comm(model) {
  const waiting = new Map();
  let last = 0;
  model.on("msg:custom", (message, buffers) => {
    const asked = waiting.get(message.id);
    if (!asked) return;
    waiting.delete(message.id);
    if (message.error) asked.reject(new Failure(message.error.message, message.error.code));
    else asked.resolve({ message, buffer: buffers?.[0] });
  });
  const question = (method, path, given, signal) =>
    new Promise((resolve, reject) => {
      const id = (last += 1);
      waiting.set(id, { resolve, reject });
      signal?.addEventListener("abort", () => {
        waiting.delete(id);
        reject(new DOMException("no longer wanted", "AbortError"));
      });
      model.send({ id, method, path, ...given });
    });
  const texts = (query = {}) =>
    Object.fromEntries(Object.entries(query).filter(([, value]) => value != null).map(([name, value]) => [name, String(value)]));
  const whole = (view) => view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
  return {
    runs: true,
    ask: async (path, query, signal) => (await question("GET", path, { query: texts(query) }, signal)).message.body,
    async bytes(path, query, signal) {
      const { message, buffer } = await question("GET", path, { query: texts(query) }, signal);
      return { buffer: whole(buffer), exact: Boolean(message.exact), samples: message.samples };
    },
    async file(run, { l, h, i }, format) {
      const { message, buffer } = await question("GET", `runs/${run.run}/export`, { query: texts({ l, h, i, format }) });
      return new Blob([buffer ?? JSON.stringify(message.body)]);
    },
    send: async (path, body) => (await question("POST", path, { body })).message.body,
  };
}
