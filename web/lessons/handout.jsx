/** What a handout says of itself: which answers are recorded, and how to get one's own. */

/**
 * The commands with which a reader gets answers of a model.
 * @param {{commands: string[]}} props
 */
export const Commands = ({ commands }) => (
  <>
    {commands.map((command, at) => (
      <>
        {at ? ", then " : ""}
        <code>{command}</code>
      </>
    ))}
  </>
);

/**
 * The sentences whose answers are recorded, to choose from, above a screen that shows one of them.
 * @param {{handout: Handout, run: Run | null, openRun: OpenRun}} props
 */
export function Recorded({ handout, run, openRun }) {
  const { recorded, commands } = handout;
  const shown = recorded.find((one) => one.run === run?.run);
  if (!shown) return null;
  return (
    <section class="inside handout" aria-label="recorded answers">
      <p class="soft">
        These are recorded answers of <b>{shown.model}</b>. Recorded are{" "}
        <select
          class="field"
          aria-label="the recorded sentence"
          value={shown.run}
          onChange={(event) => openRun(event.currentTarget.value)}
        >
          {recorded.map((one) => (
            <option value={one.run} selected={one.run === shown.run}>
              {one.text}
            </option>
          ))}
        </select>{" "}
        For sentences of your own: <Commands commands={commands} />.
      </p>
    </section>
  );
}

/**
 * What the file is, at its end.
 * @param {{handout: Handout}} props
 */
export const AboutHandout = ({ handout }) => (
  <span>
    This is a handout, one file that needs no network: worked examples are computed in it, and every
    number of theirs can be changed. For models and sentences of your own:{" "}
    <Commands commands={handout.commands} />.
  </span>
);
