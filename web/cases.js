/**
 * Answer requests by the page's engine, for tests in Python: each line of the input is JSON, and
 * each line of the output its answer.
 *
 * {"ask": path, "query": {…}}      what the page asks of a worked example
 * {"bytes": path, "query": {…}}    a tile or a track, as base64
 * {"send": {"example": …}}         a changed example
 * {"attend": {"definition": …, "queries": […], "keys": […], "values": […]}}  every step of each row
 */
import { Buffer } from "node:buffer";
import process from "node:process";
import { createInterface } from "node:readline";
import { importBundled } from "./bundle.js";

const { attendRow, formula } = await importBundled("engine/attention.js");
const { withExamples } = await importBundled("transport/worked.js");

const nothing = () => {
  throw new Error("this was not asked of the engine");
};
const transport = withExamples({ canRun: false, ask: nothing, bytes: nothing });

/** JSON has no infinities. */
const replacer = (_, x) =>
  typeof x === "number" && !Number.isFinite(x) ? String(x).toLowerCase().replace("inity", "") : x;

/** @param {any} request */
async function answer({ ask, bytes, send, attend, query }) {
  if (ask) return transport.ask(ask, query);
  if (send) return transport.send("runs", send);
  if (bytes) return Buffer.from((await transport.bytes(bytes, query)).buffer).toString("base64");
  const { definition, queries, keys, values } = attend;
  return {
    formula: formula(definition, keys[0].length),
    rows: queries.map((_, i) => attendRow(definition, i, queries, keys, values)),
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  const answered = await answer(JSON.parse(line)).catch((error) => ({
    error: { code: error.code ?? "bug", message: error.message },
  }));
  process.stdout.write(`${JSON.stringify(answered, replacer)}\n`);
}
