/**
 * What every screen shows alike: an answer while it loads or fails, and the names of layers and
 * heads.
 */

/**
 * Show an answer's value by `children`, or that it is being computed, or its error.
 * @param {{answer: Fetched, children?: (value: any) => any}} props
 */
export function Answered({ answer, children }) {
  if (answer.error)
    return (
      <p class="failure" role="alert">
        {answer.error.message}
      </p>
    );
  return (
    <>
      {answer.slow && (
        <div class="progress" role="progressbar" aria-label="loading">
          <i />
        </div>
      )}
      {answer.value ? (
        children?.(answer.value)
      ) : (
        <p class="waiting">{answer.slow ? "computing…" : ""}</p>
      )}
    </>
  );
}

/**
 * Combine answers: the first error, and all values once all have arrived.
 * @param {...Fetched} answers
 * @returns {Fetched}
 */
export const allAnswers = (...answers) => ({
  error: answers.find(({ error }) => error)?.error ?? null,
  slow: answers.some(({ slow }) => slow),
  value: answers.every(({ value }) => value) ? answers.map(({ value }) => value) : null,
});

/** What each kind of attention is called in full. @type {Record<string, string>} */
export const KINDS = {
  encoder: "Encoder self-attention",
  decoder: "Decoder self-attention",
  cross: "Encoder–decoder attention",
  self: "Self-attention",
};

/**
 * Return the layer of an attention: the number in its name, 3 for encoder.3.self.
 * @param {Attention} attention
 */
export const layerOf = (attention) => attention.name.match(/\d+/)?.[0] ?? String(attention.l);

/**
 * Return what a head is called: by the title of its attention, or by its layer.
 * @param {Attention} attention
 * @param {number} h
 */
export const headName = (attention, h) =>
  attention.title
    ? `${attention.title}${attention.heads.length > 1 ? `, head ${h}` : ""}`
    : `layer ${layerOf(attention)}, head ${h}`;

/**
 * Return a colour or font of the theme, for what a canvas draws.
 * @param {Element} element
 * @param {string} name
 */
export const themeColour = (element, name) =>
  getComputedStyle(element).getPropertyValue(`--${name}`).trim();
