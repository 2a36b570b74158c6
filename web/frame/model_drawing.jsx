/**
 * A small drawing of the whole model. The attention that is shown is lit; a click on another one
 * opens it.
 */
import { useEffect, useRef } from "preact/hooks";
import { layerOf } from "../parts/answered.jsx";
import { screenOf } from "../screens/index.js";

const MANY = 12; // layers; beyond, blocks are drawn without their parts

/**
 * The stacks of the model from the embedding to the output, and the heads of the attention that is
 * shown.
 * @param {{run: Run, state: State, go: Go, shown: Shown}} props
 */
export function ModelDrawing({ run, state, go, shown }) {
  const { subject, needs } = screenOf(state.screen);
  if (!run.attentions.length || subject === "nothing") return null;
  const stacks = stacksOf(run);
  // On a screen about the whole model no attention is lit, and a click on one opens the walk.
  const lit = subject === "model" ? undefined : shown.attention;
  const context = { run, go, able: shown.able, lit, state };
  return (
    <div class="model" role="group" aria-label="the model: choose an attention">
      {run.kind === "example" ? (
        <div class="stack-of">
          <span class="end">vectors</span>
          {run.attentions.map((one) => (
            <AttentionBox {...context} one={one} label={one.title ?? one.name} />
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
    </div>
  );
}

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
 * @typedef {{run: Run, go: Go, able: Attention[], lit: Attention | undefined, state: State}}
 *   DrawingContext
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
  return (
    <div class="stack-of" aria-label={name} role="group">
      <button
        type="button"
        class="end"
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
          {!compact && (
            <span class="part" title="add & norm, then feed-forward, then add & norm again">
              feed-forward
            </span>
          )}
        </span>
      ))}
      {last && run.output ? (
        <button
          type="button"
          class="end"
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
function AttentionBox({ one, label, go, able, lit, state }) {
  const element = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const on = one.l === lit?.l;
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
      class={`attention ${one.kind}`}
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
