/**
 * After the head: one vector on its way from the heads to the next layer, with sizes and lengths.
 */
import { useAnswer } from "../../answers.js";
import { Answered } from "../../parts/answered.jsx";
import { count, full, percent, short } from "../../parts/numbers.js";
import { visible } from "../../parts/text.js";
import { MixedHeads } from "./mixed_heads.jsx";

/** What each stage is. @type {Record<string, [any, any]>} */
const STAGES = {
  joined: ["the heads, side by side", "every head’s context, one after the other"],
  projected: [
    <>
      × W<sub>O</sub>
    </>,
    "one matrix mixes the heads; a head’s part is how much of the result is its own",
  ],
  before: ["x, as it was", "the vector before this attention"],
  added: ["x + attention", "added: the old vector stays in it"],
  normed: ["normalised", "add & norm"],
  hidden: ["feed-forward, inside", "activation(x W₁ + b₁)"],
  fed: ["feed-forward, out", "back to the width of x"],
  passed: [
    "passed on",
    "added and, where the model does so, normalised: what the next layer reads",
  ],
};

/**
 * Each vector between the heads and the next layer, with its features and its length.
 * @param {StepProps} props
 */
export function AfterHead({ run, attention, answers, i, trace, theme }) {
  const found = useAnswer(answers, `runs/${run.run}/after`, { l: attention.l, i });
  return (
    <Answered answer={found}>
      {(/** @type {AfterAnswer} */ value) => {
        const most = Math.max(...value.stages.map((stage) => stage.norm));
        return (
          <div class="stack">
            <table class="ledger after">
              <caption class="hidden">from the heads to the next layer</caption>
              <thead>
                <tr>
                  <th scope="col">vector of {visible(trace.token)}</th>
                  <th scope="col">features</th>
                  <th scope="col">length</th>
                  <th scope="col" class="share">
                    <span class="ends">
                      <span>0</span>
                      <span>{short(most, 3)}</span>
                    </span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {value.stages.map((stage) => (
                  <tr class={stage.name === "passed" ? "chosen" : ""}>
                    <td class="what">
                      <b>{STAGES[stage.name][0]}</b>
                      <br />
                      <small class="soft">
                        {STAGES[stage.name][1]}
                        {stage.active === undefined
                          ? ""
                          : `; ${percent(stage.active)} of it is not zero`}
                        {stage.cosine === undefined ? (
                          ""
                        ) : (
                          <>; cos with the vector before = {short(stage.cosine, 3)}</>
                        )}
                      </small>
                    </td>
                    <td>{count(stage.size)}</td>
                    <td class="now" title={full(stage.norm)}>
                      {short(stage.norm)}
                    </td>
                    <td class="share">
                      <svg
                        class="meter"
                        viewBox="0 0 100 10"
                        preserveAspectRatio="none"
                        aria-hidden="true"
                      >
                        <rect
                          y="1"
                          height="8"
                          width={Math.max(0.3, (100 * stage.norm) / most)}
                          fill="var(--bar)"
                        />
                      </svg>
                      {stage.heads && <Parts heads={stage.heads} all={attention.heads} />}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
            {value.mixed && <MixedHeads mixed={value.mixed} theme={theme} />}
            <p>
              {value.follows === "cross" ? (
                <>
                  Next comes the <b>encoder–decoder attention</b> of the same block, then its
                  feed-forward network.
                </>
              ) : (
                <>
                  In this block the vector of <b class="q">{visible(trace.token)}</b> has turned to
                  a cosine of <b>{short(value.moved, 3)}</b> with what it was.
                </>
              )}
            </p>
            <p class="checked">
              Computed again from the recorded vectors, x + attention differs from the model’s own
              by at most {short(value.difference, 2)}.
            </p>
          </div>
        );
      }}
    </Answered>
  );
}

/**
 * How much of the result is each head’s own, as bars.
 * @param {{heads: number[], all: number[]}} props
 */
function Parts({ heads, all }) {
  const most = Math.max(...heads);
  return (
    <span
      class="head-parts"
      role="img"
      aria-label={`by head: ${heads.map((norm, at) => `${all[at]}: ${short(norm, 3)}`).join(", ")}`}
    >
      {heads.map((norm, at) => (
        <span title={`head ${all[at]}: ${full(norm)}`}>
          <i style={{ height: `${most ? (100 * norm) / most : 0}%` }} />
          <small>{all[at]}</small>
        </span>
      ))}
    </span>
  );
}
