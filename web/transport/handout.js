/** A handout: a lesson’s worked examples are computed, and what a model answers is recorded. */
import { Failure } from "./http.js";
import { fileTransport } from "./inline.js";

/**
 * Answer requests from what a handout holds; a sentence that is recorded can be "run".
 * @param {Record<string, any>} answers
 * @param {Handout} handout
 * @returns {Transport}
 */
export const handoutTransport = (answers, handout) => {
  const { recorded, commands } = handout;
  const elsewhere = `for all others: ${commands.join(", then ")}`;
  const file = fileTransport(
    answers,
    `this handout does not hold that answer, only what its lesson shows; ${elsewhere}`,
  );
  return {
    ...file,
    handout,
    async send(path, body) {
      const text = "text" in body ? String(body.text).trim() : "";
      const found = recorded.find((one) => one.text === text);
      if (path === "runs" && found) return answers[`/runs/${found.run}`];
      const known = recorded.map((one) => `“${one.text}”`).join(", ");
      throw new Failure(
        known
          ? `this handout holds recorded answers for ${known} alone; ${elsewhere}`
          : `this handout runs no model; ${elsewhere}`,
        "absent",
      );
    },
  };
};
