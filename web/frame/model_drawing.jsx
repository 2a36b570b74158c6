/**
 * A small drawing of the whole model. The attention that is shown is lit; a click on another one
 * opens it. A vector can be followed on its way through all of it.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import { layerOf } from "../parts/answered.jsx";
import { screenOf } from "../screens/index.js";
import { Flow } from "./flow.jsx";

const MANY = 12; // layers; beyond, blocks are drawn without their parts

/**
 * The stacks of the model from the embedding to the output, and the heads of the attention that is
 * shown.
 * @param {{run: Run, state: State, go: Go, shown: Shown, answers:
 *   import("../answers.js").Answers}} props
 */
export function ModelDrawing({ run, state, go, shown, answers }) {
  /** The station of the vector that is followed. */
  const [place, follow] = useState(/** @type {import("./flow.jsx").StationPlace | null} */ (null));
  useEffect(() => follow(null), [run.run]);
  const { subject, needs } = screenOf(state.screen);
  if (!run.attentions.length || subject === "nothing") return null;
  const stacks = stacksOf(run);
  // On a screen about the whole model no attention is lit, and a click on one opens the walk.
  const lit = subject === "model" ? undefined : shown.attention;
  const context = { run, go, able: shown.able, lit, state, place, follow };
  const followed = place && run.attentions[place.l];
  // The word that is chosen, if the vector is of the same text.
  const isSameText = followed && sideOf(followed) === sideOf(shown.attention ?? followed);
  const i = Math.min(
    (isSameText ? state.query : null) ?? (followed ? followed.n_q >> 1 : 0),
    (followed?.n_q ?? 1) - 1,
  );
  return (
    <div class="model" role="group" aria-label="the model: choose an attention">
      {run.kind === "example" ? (
        <div class="stack-of">
          <span class="end">vectors</span>
          {run.attentions.map((one) => (
            <AttentionBox {...context} one={one} label={sceneLabel(one, run.attentions)} />
          ))}
        </div>
      ) : (
        stacks.map((stack) => <Stack {...context} stack={stack} last={stack === stacks.at(-1)} />)
      )}
      {lit && subject !== "layer" && (
        <HeadChips
          attention={lit}
          h={shown.h}
          go={go}
          only={needs === "tiles" ? run.held?.h : undefined}
        />
      )}
      {canFollow(shown.attention ?? run.attentions[0], run) && !place && (
        <button
          type="button"
          class="button small"
          onClick={() => follow({ kind: "embedding", l: (shown.attention ?? run.attentions[0]).l })}
        >
          ▶ follow a vector
        </button>
      )}
      {place && (
        <Flow {...{ run, place, i, go, answers }} move={follow} close={() => follow(null)} />
      )}
    </div>
  );
}

/**
 * Return what a scene of an example is called in the drawing: its title up to a colon, and the
 * score where scenes have different ones.
 * @param {Attention} one
 * @param {Attention[]} all
 */
function sceneLabel(one, all) {
  const name = (one.title ?? one.name).split(":")[0];
  const scores = all.map(({ formula }) => formula.match(/^\w+\((.*?)( [·/] [^ ]+)?\) v/)?.[1]);
  const own = scores[all.indexOf(one)];
  const differ = new Set(scores).size === all.length && all.length > 1;
  return differ && own ? `${name}: ${own}` : name;
}

/** Return which of two texts the queries of an attention are in. @param {Attention} attention */
const sideOf = ({ kind }) => (kind === "cross" ? "decoder" : kind);

/**
 * Return whether the way of a vector is known: of a model of Telescope that runs here, not of a
 * recording or in a saved page.
 * @param {Attention} attention
 * @param {Run} run
 */
const canFollow = (attention, run) =>
  run.kind === "sentence" && !run.held && attention.has?.after === true;

/**
 * @typedef {{name: string, blocks: Attention[][]}} ModelStack  the attentions of each block
 */

/**
 * Return the stacks of a model: encoder and decoder, or one.
 * @param {Run} run
 * @returns {ModelStack[]}
 */
function stacksOf(run) {
  /** @type {Map<string, Map<string, Attention[]>>} */
  const stacks = new Map();
  for (const one of run.attentions) {
    const name = one.kind === "cross" ? "decoder" : one.kind;
    const blocks = stacks.get(name) ?? stacks.set(name, new Map()).get(name);
    const layer = `${layerOf(one)}${one.name.match(/ call \d+$/)?.[0] ?? ""}`;
    blocks?.set(layer, [...(blocks.get(layer) ?? []), one]);
  }
  return [...stacks].map(([name, blocks]) => ({ name, blocks: [...blocks.values()] }));
}

/**
 * @typedef {import("./flow.jsx").StationPlace} StationPlace
 * @typedef {{run: Run, go: Go, able: Attention[], lit: Attention | undefined, state: State, place:
 *   StationPlace | null, follow: (place: StationPlace | null) => void}} DrawingContext  `place` is
 *   where a followed vector is
 */

/** What an attention is called in the drawing, by its kind. @type {Record<string, string>} */
const ATTENTION_LABELS = { encoder: "self", decoder: "masked self", cross: "cross", self: "self" };

/**
 * One stack of blocks: an encoder, a decoder, or all of a GPT.
 * @param {DrawingContext & {stack: ModelStack, last: boolean}} props
 */
function Stack({ stack, last, ...context }) {
  const { run, go, state } = context;
  const compact = stack.blocks.length > MANY;
  const name = stack.name === "self" ? "blocks" : stack.name;
  const { place } = context;
  const isHere = place && sideOf(run.attentions[place.l]) === stack.name;
  /** Return the class of what a followed vector is at. @param {boolean | null} isAt */
  const flowing = (isAt) => (isAt && isHere ? "flowing" : "");
  return (
    <div class="stack-of" aria-label={name} role="group">
      <button
        type="button"
        class={`end ${flowing(/embedding|position/.test(place?.kind ?? ""))}`}
        aria-pressed={state.screen === "positions" && stack.blocks[0][0].kind === context.lit?.kind}
        disabled={stack.blocks[0][0].has?.positions === false}
        title="every token becomes a vector, and its position is added: show how"
        onClick={() =>
          go({
            screen: "positions",
            layer: stack.blocks[0][0].l,
            kind: null,
            ...(stack.blocks[0][0].kind === context.lit?.kind ? {} : { query: null }),
          })
        }
      >
        {stack.name === "decoder" ? "written" : "read"}
        <small>embed ⊕ position</small>
      </button>
      {stack.blocks.map((block) => (
        <span class={`block ${compact ? "compact" : ""}`}>
          <small class="nr">{layerOf(block[0])}</small>
          {block.map((one) => (
            <AttentionBox
              {...context}
              one={one}
              label={
                compact
                  ? ""
                  : one.mask === "everyone" && one.kind === "self"
                    ? "attention"
                    : ATTENTION_LABELS[one.kind]
              }
            />
          ))}
          {!compact && <FeedForwardBox {...context} block={block} />}
        </span>
      ))}
      {last && run.output ? (
        <button
          type="button"
          class={`end ${flowing(place?.kind === "output")}`}
          aria-pressed={state.screen === "output"}
          onClick={() => go({ screen: "output" })}
        >
          logits<small>→ words</small>
        </button>
      ) : (
        <span class="end">
          {stack.name === "encoder" && run.attentions.some((one) => one.kind === "cross") ? (
            <>
              z<small>→ cross</small>
            </>
          ) : (
            "…"
          )}
        </span>
      )}
    </div>
  );
}

/**
 * The feed-forward network of a block, which opens a panel with what it does to the chosen word.
 * @param {DrawingContext & {block: Attention[]}} props
 */
function FeedForwardBox({ block, run, place, follow }) {
  const last = block[block.length - 1];
  const isAt = place?.kind === "feed-forward" && place.l === last.l;
  const said = "add & norm, then feed-forward, then add & norm again";
  if (!canFollow(last, run))
    return (
      <span class="part" title={`${said}; its numbers are known of models that run here`}>
        feed-forward
      </span>
    );
  return (
    <button
      type="button"
      class={`part ${isAt ? "flowing" : ""}`}
      title={said}
      aria-label={`feed-forward of ${last.name.replace(/[.](self|cross)$/, "")}`}
      aria-pressed={isAt}
      onClick={() => follow(isAt ? null : { kind: "feed-forward", l: last.l })}
    >
      feed-forward
    </button>
  );
}

/** What was chosen among the queries of one attention. @type {StateChange} */
const NO_QUERY = {
  query: null,
  key: null,
  heads: { layerA: null, headA: null, layerB: null, headB: null },
};

/**
 * One attention of the drawing; the one that is shown scrolls into view.
 * @param {DrawingContext & {one: Attention, label: string}} props
 */
function AttentionBox({ one, label, go, able, lit, state, place }) {
  const element = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const on = one.l === lit?.l;
  const isAt = place?.l === one.l && /self|cross/.test(place.kind);
  useEffect(() => {
    const box = element.current?.closest(".stack-of");
    if (!on || !box || !element.current) return;
    const all = box.getBoundingClientRect();
    const own = element.current.getBoundingClientRect();
    if (own.left < all.left || own.right > all.right)
      box.scrollLeft += own.left - all.left - all.width / 2;
  }, [on]);
  const aboutModel = screenOf(state.screen).subject === "model";
  // Another kind of attention has another text: its queries are other words.
  const otherText = one.kind !== lit?.kind || aboutModel;
  return (
    <button
      type="button"
      ref={element}
      class={`attention ${one.kind} ${isAt ? "flowing" : ""}`}
      aria-pressed={on}
      disabled={!able.includes(one)}
      title={`${one.name}: ${one.heads.length} heads, ${one.n_q} queries, ${one.n_k} keys`}
      aria-label={label && label !== one.title ? `${label}, ${one.name}` : (one.title ?? one.name)}
      onClick={() =>
        go({
          ...(aboutModel ? { screen: "walk" } : {}),
          ...(otherText ? NO_QUERY : {}),
          layer: one.l,
          kind: null,
        })
      }
    >
      {label}
    </button>
  );
}

const CHIPS = 16; // heads; beyond, a list

/**
 * The heads of an attention: buttons, or a list where they are many.
 * @param {{attention: Attention, h: number, go: Go, only?: number}} props  `only` is the head whose
 *   map a file holds
 */
function HeadChips({ attention, h, go, only }) {
  const heads = only === undefined ? attention.heads : [only];
  if (heads.length > CHIPS)
    return (
      <label class="labelled">
        head{" "}
        <select
          value={String(h)}
          onChange={(event) => go({ head: Number(event.currentTarget.value) })}
        >
          {heads.map((one) => (
            <option value={String(one)} selected={one === h}>
              {one}
            </option>
          ))}
        </select>
      </label>
    );
  if (heads.length === 1) return null;
  return (
    <div class="chips" role="group" aria-label="head">
      <span class="soft">head</span>
      {heads.map((one) => (
        <button
          type="button"
          data-h={one}
          aria-pressed={one === h}
          onClick={() => go({ head: one })}
        >
          {one}
        </button>
      ))}
    </div>
  );
}
