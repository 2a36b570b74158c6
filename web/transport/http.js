/** The server that this page came from. */

export class Failure extends Error {
  constructor(message, code) {
    super(message);
    this.code = code;
  }
}

const address = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  return `/api/v1/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
};

async function fetched(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...options });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Failure("the server does not answer; is it still running?", "gone");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new Failure(told.error?.message ?? `the server answered ${response.status}`, told.error?.code ?? response.status);
}

export const http = {
  /** Whether a new sentence can be run. */
  runs: true,

  async ask(path, query, signal) {
    return (await fetched(address(path, query), { signal })).json();
  },

  async bytes(path, query, signal) {
    const response = await fetched(address(path, query), { signal });
    return {
      buffer: await response.arrayBuffer(),
      exact: response.headers.get("X-Exact") !== "0",
      samples: Number(response.headers.get("X-Samples") ?? 0),
    };
  },

  /** Everything about one head, in one file. */
  async file(run, { l, h, i }, format) {
    return (await fetched(address(`runs/${run.run}/export`, { l, h, i, format }))).blob();
  },

  async send(path, body) {
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    return (await fetched(address(path), options)).json();
  },
};
