import assert from "node:assert/strict";
import { test } from "node:test";
import { Failure, httpTransport } from "../transport/http.js";
import { NoModel, remembering } from "../transport/remake.js";

const SOURCE = { model: "here", text: "Good morning.", target: null };
const NAME = "s0123456789ab";

/** A server that forgets its runs when it is told to, and counts what it is asked. */
function server(models = ["here"]) {
  const runs = new Map();
  const asked = [];
  const check = (path) => {
    const name = path.split("/")[1];
    if (!runs.has(name)) throw new Failure("there is no run", "unknown-run");
    return name;
  };
  return {
    runs,
    asked,
    canRun: true,
    async ask(path) {
      asked.push(`GET ${path}`);
      if (path === "models") return { models };
      return { of: check(path) };
    },
    async bytes(path) {
      asked.push(`GET ${path}`);
      return { of: check(path) };
    },
    async file(run) {
      return { of: check(`runs/${run.run}`) };
    },
    async send(path, body) {
      asked.push(`POST ${body.text ?? body.example}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
      const run = body.example
        ? { run: "example-journey-1", kind: "example", text: "x", model: "journey" }
        : { run: NAME, kind: "sentence", target: null, ...body };
      runs.set(run.run, run);
      return run;
    },
  };
}

test("the sentence of an address is made at once, by one request", async () => {
  const api = server();
  const page = remembering(api);
  page.remember({ run: NAME, ...SOURCE });
  const [run, same] = await Promise.all([page.ask(`runs/${NAME}`), page.ask(`runs/${NAME}`)]);
  assert.deepEqual([run.run, same], [NAME, run]);
  assert.deepEqual(api.asked, ["GET models", "POST Good morning."]);
  await page.ask(`runs/${NAME}`);
  assert.equal(api.asked.length, 2);
});

test("a run that the server has forgotten is made again, once for all requests", async () => {
  const api = server();
  const page = remembering(api);
  await page.send("runs", { text: "Good morning.", model: "here" });
  api.runs.clear();
  const found = await Promise.all([
    page.ask(`runs/${NAME}/start`),
    page.bytes(`runs/${NAME}/tiles/0/0/0`),
    page.file({ run: NAME }, {}, "html"),
  ]);
  assert.deepEqual(found, [{ of: NAME }, { of: NAME }, { of: NAME }]);
  assert.equal(api.asked.filter((one) => one.startsWith("POST")).length, 2);
});

test("an edited example is made again from its numbers", async () => {
  const api = server();
  const page = remembering(api);
  const { run } = await page.send("runs", { example: "journey", inputs: { x: [[1]] } });
  api.runs.clear();
  assert.deepEqual(await page.ask(`runs/${run}/trace`), { of: run });
});

test("a model that is not here is named, and a folder elsewhere is found by its name", async () => {
  const page = remembering(server(["one", "two"]));
  page.remember({ run: NAME, ...SOURCE });
  await assert.rejects(page.ask(`runs/${NAME}`), (problem) => {
    assert.ok(problem instanceof NoModel);
    assert.deepEqual([problem.source.model, problem.models], ["here", ["one", "two"]]);
    return true;
  });
  const moved = remembering(server(["/home/me/here", "two"]));
  moved.remember({ run: NAME, ...SOURCE });
  assert.equal((await moved.ask(`runs/${NAME}`)).model, "/home/me/here");
});

test("an address without a sentence, or of a recording, is asked for as it is", async () => {
  const api = server();
  const page = remembering(api);
  page.remember({ run: NAME, ...SOURCE, text: null });
  page.remember({ run: "recording", ...SOURCE });
  page.remember({ run: "example-journey", ...SOURCE });
  for (const run of [NAME, "recording", "example-journey"])
    await assert.rejects(page.ask(`runs/${run}`), { code: "unknown-run" });
  assert.deepEqual(
    api.asked.filter((one) => one.startsWith("POST")),
    [],
  );
});

test("a busy server is asked again, and an abort ends the waiting", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const busy = { ok: false, status: 503, headers: new Headers({ "Retry-After": "1" }) };
  const good = { ok: true, status: 200, json: async () => ({ runs: [] }) };
  const answers = [busy, busy, good];
  globalThis.fetch = async () => /** @type {any} */ (answers.shift());
  const asking = httpTransport.ask("runs");
  for (let tick = 0; tick < 10; tick += 1) {
    await new Promise((resolve) => setImmediate(resolve));
    context.mock.timers.tick(3000);
  }
  assert.deepEqual(await asking, { runs: [] });
  answers.push(busy);
  const left = new AbortController();
  const waiting = httpTransport.ask("runs", undefined, left.signal);
  await new Promise((resolve) => setImmediate(resolve));
  left.abort();
  await assert.rejects(waiting, { name: "AbortError" });
});
