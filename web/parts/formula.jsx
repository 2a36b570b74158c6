/** Formulas in MathML, which browsers typeset without a font or a library. */

/**
 * Return a letter with an index, in the colour of its kind.
 * @type {(base: string, index: string, kind?: string) => any}
 */
const sub = (base, index, kind) => (
  <msub class={kind}>
    <mi>{base}</mi>
    <mi>{index}</mi>
  </msub>
);
/**
 * Return a letter with two indices.
 * @type {(base: string, a: string, b: string, kind?: string) => any}
 */
const subsub = (base, a, b, kind) => (
  <msub class={kind}>
    <mi>{base}</mi>
    <mrow>
      <mi>{a}</mi>
      <mi>{b}</mi>
    </mrow>
  </msub>
);
/** Return the sign of a sum over an index. @type {(index: string) => any} */
const over = (index) => (
  <munder>
    <mo>∑</mo>
    <mi>{index}</mi>
  </munder>
);
/** Return formulas, each on a line of its own. @type {(...parts: any[]) => any} */
const math = (...parts) => (
  <div class="formula">
    {parts.map((inside) => (
      <math>{inside}</math>
    ))}
  </div>
);

/**
 * The usual formula of each step; `d` is the length of a key.
 * @type {Record<string, (d: number) => any>}
 */
export const FORMULAS = {
  tokens: () =>
    math(
      <>
        <mtext>text</mtext>
        <mo>→</mo>
        <msub>
          <mi>t</mi>
          <mn>1</mn>
        </msub>
        <mo>,</mo>
        <mo>…</mo>
        <mo>,</mo>
        <msub>
          <mi>t</mi>
          <mi>n</mi>
        </msub>
      </>,
    ),
  embedding: () =>
    math(
      <>
        {sub("x", "i", "q")}
        <mo>∈</mo>
        <msup>
          <mi>ℝ</mi>
          <mi>d</mi>
        </msup>
      </>,
    ),
  qkv: () =>
    math(
      <>
        {sub("q", "i", "q")}
        <mo>=</mo>
        {sub("x", "i")}
        <msub>
          <mi>W</mi>
          <mi>q</mi>
        </msub>
      </>,
      <>
        {sub("k", "j", "k")}
        <mo>=</mo>
        {sub("x", "j")}
        <msub>
          <mi>W</mi>
          <mi>k</mi>
        </msub>
      </>,
      <>
        {sub("v", "j", "v")}
        <mo>=</mo>
        {sub("x", "j")}
        <msub>
          <mi>W</mi>
          <mi>v</mi>
        </msub>
      </>,
    ),
  scores: () =>
    math(
      <>
        {subsub("s", "i", "j")}
        <mo>=</mo>
        {sub("q", "i", "q")}
        <mo>·</mo>
        {sub("k", "j", "k")}
        <mo>=</mo>
        {over("m")}
        {subsub("q", "i", "m", "q")}
        {subsub("k", "j", "m", "k")}
      </>,
    ),
  scaled: (d) =>
    math(
      <>
        <msub>
          <mover>
            <mi>s</mi>
            <mo>~</mo>
          </mover>
          <mrow>
            <mi>i</mi>
            <mi>j</mi>
          </mrow>
        </msub>
        <mo>=</mo>
        <mfrac>
          {subsub("s", "i", "j")}
          <msqrt>
            <mi>{d}</mi>
          </msqrt>
        </mfrac>
      </>,
    ),
  mask: () =>
    math(
      <>
        {subsub("s", "i", "j")}
        <mo>=</mo>
        <mrow>
          <mo>−</mo>
          <mi>∞</mi>
        </mrow>
        <mspace width=".5em" />
        <mtext>where masked</mtext>
      </>,
    ),
  softmax: () =>
    math(
      <>
        {subsub("w", "i", "j")}
        <mo>=</mo>
        <mfrac>
          <msup>
            <mi>e</mi>
            <msub>
              <mover>
                <mi>s</mi>
                <mo>~</mo>
              </mover>
              <mrow>
                <mi>i</mi>
                <mi>j</mi>
              </mrow>
            </msub>
          </msup>
          <mrow>
            {over("l")}
            <msup>
              <mi>e</mi>
              <msub>
                <mover>
                  <mi>s</mi>
                  <mo>~</mo>
                </mover>
                <mrow>
                  <mi>i</mi>
                  <mi>l</mi>
                </mrow>
              </msub>
            </msup>
          </mrow>
        </mfrac>
      </>,
    ),
  sum: () =>
    math(
      <>
        {sub("c", "i")}
        <mo>=</mo>
        {over("j")}
        {subsub("w", "i", "j")}
        {sub("v", "j", "v")}
      </>,
    ),
  context: () =>
    math(
      <>
        {sub("c", "i")}
        <mo>∈</mo>
        <msup>
          <mi>ℝ</mi>
          <msub>
            <mi>d</mi>
            <mi>v</mi>
          </msub>
        </msup>
      </>,
    ),
};
