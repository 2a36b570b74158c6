/** Requests to the server that the page came from. */

/** An error answer of the API: one sentence for the reader, and a short code. */
export class Failure extends Error {
  /**
   * @param {string} message
   * @param {string | number} code
   */
  constructor(message, code) {
    super(message);
    this.code = code;
  }
}

/**
 * Return the parameters as text, without those that are null or undefined.
 * @param {Query} [query]
 * @returns {[string, string][]}
 */
export const textEntries = (query = {}) =>
  Object.entries(query)
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => [name, String(value)]);

/**
 * Return the address of a request; parameters without a value are left out.
 * @param {string} path
 * @param {Query} [query]
 */
const address = (path, query) => {
  const parameters = String(new URLSearchParams(textEntries(query)));
  return `/api/v1/${path}${parameters ? `?${parameters}` : ""}`;
};

const MOST_TRIES = 8; // of a request that a busy server refuses: about half a minute
const LONGEST_PAUSE = 8;

/** Return a number from 0 to 1, another one in each browser. */
const chance = () => crypto.getRandomValues(new Uint8Array(1))[0] / 255;

/**
 * Wait until a request that was refused is sent again: as long as the server says, longer each time,
 * and not as long as every other page of a class.
 * @param {Response} response
 * @param {number} tries
 * @param {AbortSignal | null} [signal]
 */
const pause = (response, tries, signal) =>
  new Promise((resolve, reject) => {
    const asked = Number(response.headers.get("Retry-After")) || 1;
    const seconds = Math.min(asked * 2 ** (tries - 1), LONGEST_PAUSE) * (0.5 + chance());
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("aborted", "AbortError"));
    });
  });

/**
 * Return the response to a request, or throw a Failure with the server's message.
 * @param {string} url
 * @param {RequestInit} [options]
 * @param {number} [tries]
 * @returns {Promise<Response>}
 */
async function request(url, options, tries = 1) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...options });
  } catch (problem) {
    if (/** @type {Error} */ (problem).name === "AbortError") throw problem;
    throw new Failure("the server does not answer; is it still running?", "gone");
  }
  if (response.ok) return response;
  if (response.status === 503 && tries < MOST_TRIES) {
    await pause(response, tries, options?.signal);
    return request(url, options, tries + 1);
  }
  const { error } = await response.json().catch(() => ({}));
  throw new Failure(
    error?.message ?? `the server answered ${response.status}`,
    error?.code ?? response.status,
  );
}

/** Reach the API of the server that sent this page. @type {Transport} */
export const httpTransport = {
  canRun: true,

  async ask(path, query, signal) {
    return (await request(address(path, query), { signal })).json();
  },

  async bytes(path, query, signal) {
    const response = await request(address(path, query), { signal });
    return {
      buffer: await response.arrayBuffer(),
      exact: response.headers.get("X-Exact") !== "0",
      samples: Number(response.headers.get("X-Samples") ?? 0),
    };
  },

  async file(run, place, format) {
    return (await request(address(`runs/${run.run}/export`, { ...place, format }))).blob();
  },

  async lesson(name) {
    return (await request(address(`handouts/${name}`))).blob();
  },

  async send(path, body) {
    const options = {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    };
    return (await request(address(path), options)).json();
  },
};
