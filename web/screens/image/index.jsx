/** Image: what one patch, or a token beside the patches, sees of an image, in every head. */
import { useEffect, useState } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered, headName } from "../../parts/answered.jsx";
import { full, percent } from "../../parts/numbers.js";
import { visible } from "../../parts/text.js";
import { perRun, shared, text } from "../../state/fields.js";
import { fits, misfit } from "./fitting.js";
import { Patches } from "./patches.jsx";

export const title = "Image";
export const shows = "what a query sees of an image";
export const needs = "image";
/** @type {ScreenModule["isOffered"]} */
export const isOffered = (run) => Boolean(run?.attentions.some((one) => one.has?.image));
export const fields = {
  ...shared("layer", "head", "query"),
  /** What the weights are of: one "query", or "all" queries together. */
  weightsOf: perRun(text("whose", "query")),
};
export { ImageScreen as view };

/** @typedef {import("./patches.jsx").PictureOf} PictureOf */

/** The pictures of each run, by the name of the image: they stay on this machine. */
const CHOSEN = /** @type {Map<string, Record<string, PictureOf>>} */ (new Map());

/** One head large, and all heads of the layer beside it. @param {ScreenProps} props */
function ImageScreen(props) {
  const { run, attention, state, answers } = props;
  const isAll = state.image.weightsOf === "all";
  const path = `runs/${run.run}/image`;
  const every = useAnswer(answers, path, { l: attention.l });
  const begin = every.value?.queries[0]?.i ?? every.value?.grids[0]?.queries.find(isKnown) ?? 0;
  const i = Math.min(state.query ?? begin, attention.n_q - 1);
  const one = useAnswer(answers, isAll || !every.value ? null : path, { l: attention.l, i });
  return (
    <>
      <h2>What a patch sees of the image</h2>
      <p class="lede">
        Click a patch, and see where each head looks from there. The stronger the colour, the larger
        the weight; each head has a scale of its own.
      </p>
      <Answered answer={isAll ? every : every.error ? every : one}>
        {(/** @type {ImageAnswer} */ value) => <Seen {...props} found={value} isAll={isAll} />}
      </Answered>
    </>
  );
}

/** @type {(query: number | null) => boolean} */
const isKnown = (query) => query !== null;

/**
 * @param {ScreenProps & {found: ImageAnswer, isAll: boolean}} props
 */
function Seen({ run, attention, state, go, theme, found, isAll }) {
  const [pictures, setPictures] = useState(CHOSEN.get(run.run) ?? {});
  const [at, setAt] = useState(/** @type {{grid: number, patch: number} | null} */ (null));
  useEffect(() => setAt(null), [attention.l]);
  /** @type {(name: string, picture: PictureOf | null) => void} */
  const choose = (name, picture) => {
    const { [name]: _, ...others } = pictures;
    const now = picture ? { ...others, [name]: picture } : others;
    CHOSEN.set(run.run, now);
    setPictures(now);
  };
  const { grids, heads } = found;
  const head = heads.find(({ h }) => h === state.head) ?? heads[0];
  /** @type {(grid: number, patch: number) => void} */
  const look = (grid, patch) => {
    const query = grids[grid].queries[patch];
    if (query !== null) go({ query, image: { weightsOf: "query" } });
  };
  const asked = found.queries.length > 0;
  const canClick = grids.some(({ queries }) => queries.some(isKnown));
  return (
    <div class="stack">
      <div class="row" style={{ marginTop: "16px" }}>
        <span class="segments" role="group" aria-label="whose weights">
          <button
            type="button"
            aria-pressed={!isAll}
            onClick={() => go({ image: { weightsOf: "query" } })}
          >
            one query
          </button>
          <button
            type="button"
            aria-pressed={isAll}
            onClick={() => go({ image: { weightsOf: "all" } })}
          >
            all queries together
          </button>
        </span>
        {grids.map((grid) => (
          <Chooser
            grid={grid}
            picture={pictures[grid.name]}
            choose={(picture) => choose(grid.name, picture)}
          />
        ))}
      </div>
      {asked && (
        <div class="picker">
          <h3>looking from</h3>
          <div class="words" role="group" aria-label="queries that are no patches">
            {found.queries.map(({ i, token }) => (
              <button
                type="button"
                aria-pressed={!isAll && i === found.i}
                onClick={() => go({ query: i, image: { weightsOf: "query" } })}
              >
                {visible(token)}
              </button>
            ))}
          </div>
        </div>
      )}
      <div class="image-and-heads">
        <section class="card">
          <h3>
            {headName(attention, head.h)}:{" "}
            {isAll ? "received from all queries" : <b class="q">{visible(found.token ?? "")}</b>}
          </h3>
          <div class="images">
            {grids.map((grid, number) => (
              <figure style={{ flexGrow: grid.columns / grid.rows }}>
                <Patches
                  grid={grid}
                  weights={head.weights[number]}
                  picture={pictures[grid.name]}
                  theme={theme}
                  name={grid.name || "image"}
                  own={isAll ? -1 : grid.queries.indexOf(found.i)}
                  at={at?.grid === number ? at.patch : null}
                  point={(patch) => setAt(patch === null ? null : { grid: number, patch })}
                  pick={(patch) => look(number, patch)}
                />
                {grid.name && <figcaption class="soft">{grid.name}</figcaption>}
              </figure>
            ))}
          </div>
          <Readout found={found} head={head} at={at} canClick={canClick} />
        </section>
        <ul class="small-heads" aria-label="all heads">
          {heads.map((one) => (
            <li>
              <button
                type="button"
                aria-pressed={one.h === head.h}
                onClick={() => go({ layer: attention.l, head: one.h })}
              >
                <div class="images">
                  {grids.map((grid, number) => (
                    <div style={{ flexGrow: grid.columns / grid.rows }}>
                      <Patches
                        grid={grid}
                        weights={one.weights[number]}
                        picture={pictures[grid.name]}
                        theme={theme}
                        name={`head ${one.h}${grid.name ? `, ${grid.name}` : ""}`}
                        own={isAll ? -1 : grid.queries.indexOf(found.i)}
                      />
                    </div>
                  ))}
                </div>
                <span>head {one.h}</span>
              </button>
            </li>
          ))}
        </ul>
      </div>
    </div>
  );
}

/**
 * The weight of the patch that is pointed at, what other tokens get, and what is not known.
 * @param {{found: ImageAnswer, head: HeadOnImage, at: {grid: number, patch: number} | null,
 *   canClick: boolean}} props
 */
function Readout({ found, head, at, canClick }) {
  const grid = at && found.grids[at.grid];
  const onPatches = head.weights.flat().reduce((total, weight) => total + weight, 0);
  return (
    <div style={{ marginTop: "12px" }}>
      <output style={{ display: "block", minHeight: "1.6em" }} aria-live="polite">
        {grid && at ? (
          <>
            {grid.name && `${grid.name} `}({Math.floor(at.patch / grid.columns)},{" "}
            {at.patch % grid.columns}) = <b>{full(head.weights[at.grid][at.patch])}</b>
          </>
        ) : (
          <span class="soft">
            {canClick ? "point at a patch, or click it to look from there" : "point at a patch"}
          </span>
        )}
      </output>
      <p class="soft" style={{ fontSize: "13px", marginTop: "6px" }}>
        {found.i === null ? "All patches receive " : "All patches get "}
        {percent(onPatches)}
        {head.others.length > 0 && "; other tokens: "}
        {head.others.map(({ token, weight }, place) => (
          <>
            {place > 0 && ", "}
            <b class="k">{visible(token)}</b> {percent(weight)}
          </>
        ))}
        {head.rest > 0 && `, the rest ${percent(head.rest)}`}.
        {head.known < 0.999 &&
          ` Only the largest weights of each query were kept, ${percent(head.known)} of its weight.`}
      </p>
    </div>
  );
}

/**
 * A button that asks for the picture of an image, and says where one does not fit.
 * @param {{grid: ImageGrid, picture?: PictureOf, choose: (picture: PictureOf | null) => void}} props
 */
function Chooser({ grid, picture, choose }) {
  const [problem, setProblem] = useState("");
  /** @param {Event & {currentTarget: HTMLInputElement}} event */
  const load = async (event) => {
    const input = event.currentTarget;
    const file = input.files?.[0];
    input.value = "";
    if (!file) return;
    const url = URL.createObjectURL(file);
    const image = new Image();
    image.src = url;
    try {
      await image.decode();
    } catch {
      setProblem(`“${file.name}” is no picture that this browser can show.`);
      return;
    } finally {
      URL.revokeObjectURL(url);
    }
    const isFitting = fits(image.naturalWidth, image.naturalHeight, grid);
    setProblem(isFitting ? "" : misfit(image.naturalWidth, image.naturalHeight, grid));
    if (isFitting) choose(image);
  };
  const name = grid.name || "the image";
  return (
    <>
      <label class="button chooser">
        {picture ? "another picture" : `show the picture${grid.name ? ` of ${name}` : ""}`}
        <input
          type="file"
          accept="image/*"
          class="hidden"
          aria-label={`picture of ${name}`}
          onChange={load}
        />
      </label>
      {picture && (
        <button type="button" class="button" onClick={() => choose(null)}>
          without it
        </button>
      )}
      {problem && (
        <p class="failure" role="alert" style={{ margin: 0, flexBasis: "100%" }}>
          {problem}
        </p>
      )}
    </>
  );
}
