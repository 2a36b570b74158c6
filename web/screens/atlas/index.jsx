/**
 * Atlas: every head of a model over a corpus, as a scatter or a grid; one head in full; two atlases
 * side by side.
 */
import { useMemo } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered } from "../../parts/answered.jsx";
import { count, full, percent, short } from "../../parts/numbers.js";
import { Term } from "../../parts/term.jsx";
import { clipped, visible } from "../../parts/text.js";
import { shared, text } from "../../state/fields.js";
import { AtlasHead } from "./head.jsx";
import { AtlasPicture, KIND_MARKS, Mark } from "./picture.jsx";

export const fields = {
  /** Another atlas beside the one that is shown. */
  other: text("other"),
  /** "scatter" or "grid". */
  look: text("look", "scatter"),
  /** The columns across and up. */
  across: text("col", "previous"),
  up: text("row", "entropy"),
  /** The only kind of heads that is not faded. */
  only: text("only"),
  ...shared("layer", "head"),
  /** The habit whose strongest texts are listed. */
  habit: text("habit"),
};

/** One atlas or two, and what its picture shows. @param {AtlasProps} props */
export function AtlasScreen(props) {
  const { state, go, answers } = props;
  const settings = state.atlas;
  const list = useAnswer(answers, "atlases");
  const found = useAnswer(answers, `atlases/${encodeURIComponent(settings.name ?? "")}`);
  const other = useAnswer(
    answers,
    settings.other && `atlases/${encodeURIComponent(settings.other)}`,
  );
  /** @type {string[]} */
  const names = (list.value?.atlases ?? []).map((/** @type {AtlasAnswer} */ one) => one.atlas);
  return (
    <>
      <h2>Every head of a model</h2>
      <p class="lede">
        Each mark is a head, measured over a corpus. Its shape and colour are its kind: the{" "}
        <Term name="habit" /> that takes most of its weight. Choose one to see where it looks, and
        the texts in which it does so the most.
      </p>
      <div class="row atlas-bar">
        {names.length > 1 && (
          <Choice
            label="atlas"
            value={settings.name}
            options={names}
            pick={(/** @type {string} */ name) =>
              go({ atlas: { name, other: name === settings.other ? null : settings.other } })
            }
          />
        )}
        {names.length > 1 && (
          <Choice
            label="beside"
            value={settings.other ?? ""}
            options={["", ...names.filter((name) => name !== settings.name)]}
            none="no other"
            pick={(/** @type {string} */ name) => go({ atlas: { other: name || null } })}
          />
        )}
        <span class="segments" role="group" aria-label="scatter or grid">
          {["scatter", "grid"].map((look) => (
            <button
              type="button"
              aria-pressed={settings.look === look}
              onClick={() => go({ atlas: { look } })}
            >
              {look}
            </button>
          ))}
        </span>
        {found.value && (
          <>
            <Choice
              label={settings.look === "grid" ? "shade" : "across"}
              value={settings.across}
              options={found.value.columns}
              pick={(/** @type {string} */ across) => go({ atlas: { across } })}
            />
            {settings.look !== "grid" && (
              <Choice
                label="up"
                value={settings.up}
                options={found.value.columns}
                pick={(/** @type {string} */ up) => go({ atlas: { up } })}
              />
            )}
          </>
        )}
      </div>
      {other.error && (
        <p class="failure" role="alert">
          {other.error.message}
        </p>
      )}
      <Answered answer={found}>
        {(/** @type {AtlasAnswer} */ value) => (
          <Heads
            {...props}
            value={value}
            other={
              settings.other && !other.error && other.value?.atlas === settings.other
                ? other.value
                : null
            }
          />
        )}
      </Answered>
    </>
  );
}

/**
 * A list to choose from, with its label.
 * @param {{label: string, value: string | null, options: string[], pick: (name: string) => void,
 *   none?: string}} props
 */
const Choice = ({ label, value, options, pick, none }) => (
  <label class="labelled">
    {label}{" "}
    <select value={value ?? undefined} onChange={(event) => pick(event.currentTarget.value)}>
      {options.map((name) => (
        <option value={name} selected={name === value}>
          {name ? clipped(name.replace(/_/g, " "), 40) : none}
        </option>
      ))}
    </select>
  </label>
);

/**
 * @typedef {Omit<FrameProps, "shown">} AtlasProps
 */

/**
 * The picture, and the head that is chosen: at first the one with the clearest habit.
 * @param {AtlasProps & {value: AtlasAnswer, other: AtlasAnswer | null}} props
 */
function Heads({ value, other, ...props }) {
  const { state, go } = props;
  const settings = state.atlas;
  const clearest = useMemo(() => clearestHead(value), [value]);
  const layer =
    state.layer !== null && value.layers[state.layer] !== undefined
      ? value.layers[state.layer]
      : null;
  const chosen =
    value.heads.find((one) => one.layer === layer && one.head === state.head) ?? clearest;
  const l = value.layers.indexOf(chosen.layer);
  const h = chosen.head;
  /** @param {HeadOfAtlas} head */
  const choose = (head) => go({ layer: value.layers.indexOf(head.layer), head: head.head }, false);
  const atlases = other ? [value, other] : [value];
  const ticks = useMemo(
    () => [settings.across, settings.up].map((name) => columnTicks(atlases, name)),
    [value, other, settings.across, settings.up],
  );
  const shared = { ...props, settings, chosen, choose, ticks };
  return (
    <>
      <Legend atlases={atlases} only={settings.only} go={go} />
      <div class={`atlas ${other ? "both" : ""}`}>
        {atlases.map((one) => (
          <figure class="card atlas-picture" key={one.atlas}>
            <AtlasPicture {...shared} atlas={one} />
          </figure>
        ))}
        {!other && <AtlasHead {...props} atlas={value} l={l} h={h} />}
      </div>
      {other && (
        <>
          <Compared {...shared} before={value} after={other} />
          <div class="atlas both">
            {atlases.map((one) => (
              <AtlasHead
                key={one.atlas}
                {...props}
                atlas={one}
                l={one.layers.indexOf(chosen.layer)}
                h={h}
                titled={true}
              />
            ))}
          </div>
        </>
      )}
    </>
  );
}

/** Return the head with the largest share of any habit. @param {AtlasAnswer} atlas */
function clearestHead(atlas) {
  const habits = Object.keys(atlas.habit_keys);
  /** @type {(head: HeadOfAtlas) => number} */
  const share = (head) => Math.max(...habits.map((habit) => Number(head[habit] ?? 0)));
  const named = atlas.heads.filter((head) => head.kind !== "mixed" && head.kind !== "far");
  return [...(named.length ? named : atlas.heads)].sort((a, b) => share(b) - share(a))[0];
}

/**
 * Return the ticks of a column's axis, round numbers around all of its values in all atlases.
 * @type {(atlases: AtlasAnswer[], name: string) => number[]}
 */
function columnTicks(atlases, name) {
  const numbers = atlases
    .flatMap((one) => one.heads.map((head) => head[name]))
    .filter((x) => typeof x === "number");
  if (!numbers.length) return [0, 1];
  const low = Math.min(...numbers, atlases[0].shares.includes(name) ? 0 : Infinity);
  const size = Math.max(...numbers) - low || Math.abs(low) || 1;
  const power = 10 ** Math.floor(Math.log10(size / 4));
  const step = [1, 2, 2.5, 5, 10].map((x) => x * power).find((x) => size / x <= 5) ?? 10 * power;
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(first + 1, Math.ceil((low + size) / step - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, at) =>
    Number(((first + at) * step).toPrecision(12)),
  );
}

/**
 * The marks of the kinds, which fade all other kinds when pressed.
 * @param {{atlases: AtlasAnswer[], only: string | null, go: Go}} props
 */
function Legend({ atlases, only, go }) {
  const kinds = Object.keys(KIND_MARKS).filter((kind) =>
    atlases.some((one) => one.heads.some((head) => head.kind === kind)),
  );
  const keys = atlases[0].habit_keys;
  return (
    <div
      class="row kinds"
      role="group"
      aria-label="kinds of heads: choose one to see its heads alone"
    >
      {kinds.map((kind) => (
        <button
          type="button"
          aria-pressed={only === kind}
          title={
            kind === "mixed"
              ? `no habit has ${percent(atlases[0].clear)} of the weight`
              : `at least ${percent(atlases[0].clear)} of the weight on ${keys[kind]}`
          }
          onClick={() => go({ atlas: { only: only === kind ? null : kind } }, false)}
        >
          <Mark kind={kind} /> {kind}{" "}
          <small>
            {atlases
              .map((one) => count(one.heads.filter((head) => head.kind === kind).length))
              .join(" | ")}
          </small>
        </button>
      ))}
    </div>
  );
}

const ROWS = 24; // heads of a comparison that are shown

/**
 * The heads whose habits differ most between two atlases.
 * @param {AtlasProps & {before: AtlasAnswer, after: AtlasAnswer, chosen: HeadOfAtlas, choose:
 *   (head: HeadOfAtlas) => void}} props
 */
function Compared({ before, after, answers, chosen, choose }) {
  const found = useAnswer(
    answers,
    `atlases/${encodeURIComponent(before.atlas)}/compare/${encodeURIComponent(after.atlas)}`,
  );
  return (
    <>
      <h3 class="changed-most">
        What changed the most, from {visible(before.atlas)} to {visible(after.atlas)}
      </h3>
      <Answered answer={found}>
        {(/** @type {{heads: HeadChange[]}} */ value) => (
          <>
            <div
              class="scroller compared-heads"
              tabindex={0}
              role="region"
              aria-label="heads that changed the most"
            >
              <table class="habits">
                <thead>
                  <tr>
                    <th scope="col" class="name">
                      head
                    </th>
                    <th scope="col" class="name">
                      kind
                    </th>
                    <th scope="col" class="name">
                      habit
                    </th>
                    <th scope="col">before</th>
                    <th scope="col">after</th>
                    <th scope="col">change</th>
                    <th
                      scope="col"
                      title="in units of its standard error; below 3 it may be chance"
                    >
                      errors
                    </th>
                    <th scope="col" title="the share of the weight that went to other distances">
                      moved
                    </th>
                  </tr>
                </thead>
                <tbody>
                  {value.heads.slice(0, ROWS).map((one) => {
                    const same = one.kind_before === one.kind_after;
                    const head = before.heads.find(
                      (each) => each.layer === one.layer && each.head === one.number,
                    );
                    return (
                      <tr key={`${one.layer}/${one.number}`} class={head === chosen ? "a" : ""}>
                        <td class="name">
                          <button type="button" onClick={() => head && choose(head)}>
                            {visible(one.layer)}, head {one.number}
                          </button>
                        </td>
                        <td class="name">
                          <Mark kind={one.kind_before} /> {one.kind_before}
                          {same ? (
                            ""
                          ) : (
                            <>
                              {" "}
                              → <Mark kind={one.kind_after} /> {one.kind_after}
                            </>
                          )}
                        </td>
                        <td class="name">{one.habit}</td>
                        <td title={full(one.before)}>{percent(one.before)}</td>
                        <td title={full(one.after)}>{percent(one.after)}</td>
                        <td
                          class={Math.abs(one.errors ?? 0) >= 3 ? "much" : ""}
                          title={full(one.change)}
                        >
                          {one.change > 0 ? "+" : one.change < 0 ? "−" : ""}
                          {percent(Math.abs(one.change))}
                        </td>
                        <td title={full(one.errors)}>{short(one.errors, 3)}</td>
                        <td title={full(one.moved)}>{percent(one.moved)}</td>
                      </tr>
                    );
                  })}
                </tbody>
              </table>
            </div>
            {value.heads.length > ROWS && (
              <p class="soft">
                The first {ROWS} of {count(value.heads.length)} heads;{" "}
                <code>telescope compare</code> prints all.
              </p>
            )}
          </>
        )}
      </Answered>
    </>
  );
}
