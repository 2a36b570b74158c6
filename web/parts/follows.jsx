/** Which words follow a head: those of the whole vocabulary that its output pushes up and down. */
import { useAnswer } from "../answers.js";
import { Answered, headName } from "./answered.jsx";
import { full, largest } from "./numbers.js";
import { SignedBar, signed } from "./signed_bar.jsx";
import { asSentence, visible } from "./text.js";

/**
 * The panel's contents.
 * @param {{run: Run, attention: Attention, h: number, i: number, answers:
 *   import("../answers.js").Answers, theme: Theme, edited: boolean, heading: any}} props
 */
export function Follows({ run, attention, h, i, answers, theme, edited, heading }) {
  const found = useAnswer(answers, `runs/${run.run}/writes`, { l: attention.l, h, i });
  return (
    <Answered answer={found}>
      {(/** @type {WritesAnswer} */ value) => {
        const after = <b class="q">{visible(value.after)}</b>;
        const name = headName(run.attentions[value.l] ?? attention, value.h);
        const title = (
          <h2 tabindex={-1} ref={heading}>
            Which words does this head push up after {after}?
          </h2>
        );
        const { up, down } = value;
        if (!up || !down)
          return (
            <>
              {title}
              <p role="status">{asSentence(value.reason ?? "")}</p>
            </>
          );
        const most = largest([...up, ...down].map((one) => one.value));
        return (
          <>
            {title}
            <p class="lede">
              What the head wrote adds to the logit of every word, and piece of a word, that the
              model knows; a logit is the number that softmax turns into a probability. The lists
              have the words to which it adds most, and least, compared with the average word: +0.7
              about doubles a word’s odds. What later layers make of it is not counted.
              {edited ? " This is the model as it is, without the what-if." : ""}
            </p>
            <div class="two-panels">
              <Pushed words={up} title="words pushed up" zero={0} most={most} theme={theme} />
              <Pushed words={down} title="words pushed down" zero={100} most={most} theme={theme} />
            </div>
            <p class="told">
              {up[0] && (
                <>
                  After {after}, {name} pushes <b>{visible(up[0].text)}</b> up most,{" "}
                  {signed(up[0].value)}; {signed(up[0].part)} of it comes from{" "}
                  <b class="k">{visible(up[0].key)}</b>.
                </>
              )}{" "}
              {value.written === null ? (
                ""
              ) : (
                <>
                  The model wrote <b>{visible(value.written)}</b> next.
                </>
              )}
            </p>
          </>
        );
      }}
    </Answered>
  );
}

/**
 * The words that are pushed in one direction, each with the key that carried most of it.
 * @param {{words: PushedToken[], title: string, most: number, zero: number, theme: Theme}} props
 */
const Pushed = ({ words, title, most, zero, theme }) => (
  <div class="panel">
    <h3>{title}</h3>
    {words.length ? (
      <table class="ledger authors">
        <thead>
          <tr>
            <th scope="col">word</th>
            <th scope="col">adds</th>
            <th scope="col" class="share">
              <span class="hidden">as a bar</span>
            </th>
            <th scope="col" class="name">
              mostly from
            </th>
          </tr>
        </thead>
        <tbody>
          {words.map((one) => (
            <tr key={one.id}>
              <td class="token" title={`token ${one.id}`}>
                {visible(one.text)}
              </td>
              <td title={full(one.value)}>{signed(one.value)}</td>
              <td class="share">
                <SignedBar x={one.value} most={most} theme={theme} zero={zero} />
              </td>
              <td class="name k" title={full(one.part)}>
                {visible(one.key)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    ) : (
      <p class="soft">none</p>
    )}
  </div>
);
