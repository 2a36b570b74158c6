/**
 * Which attention and head a screen shows: those that were chosen, or those where it shows the
 * most.
 */
import { useAnswer } from "../answers.js";
import { SCREEN_NAMES, screenOf } from "../screens/index.js";

/**
 * Return the screens whose tabs are shown.
 * @param {Run | null} run
 * @param {State} state
 */
export const offeredScreens = (run, state) =>
  SCREEN_NAMES.filter((name) => name === state.screen || (screenOf(name).isOffered?.(run) ?? true));

/**
 * Return what is shown of a run, and the suggestions by which it was chosen.
 * @param {import("../answers.js").Answers} answers
 * @param {Run | null} run
 * @param {State} state
 */
export function useShown(answers, run, state) {
  const able = run ? showable(run, state) : [];
  const path = able.length ? `runs/${run?.run}` : null;

  // Each suggestion is requested only where it can decide something.
  const sharpest = useAnswer(answers, path && takesSharpest(state) && `${path}/sharpest`);
  const isOpen = state.layer === null || state.head === null || state.query === null;
  const start = useAnswer(answers, path && takesStart(state) && isOpen && `${path}/start`);
  return { shown: run && choose(run, able, state, sharpest, start), sharpest, start };
}

/** Return whether the screen begins where the API suggests. @param {State} state */
const takesStart = (state) => ["start", "query"].includes(screenOf(state.screen).begins ?? "");

/**
 * Return whether the attention between two texts that is shown is the sharpest, until one is
 * chosen.
 * @param {State} state
 */
const takesSharpest = (state) =>
  screenOf(state.screen).begins === "sharpest" || (state.kind === "cross" && state.layer === null);

/**
 * Return the attentions that the screen can show; a screen that begins with the sharpest takes
 * those between two texts, if there are any.
 * @param {Run} run
 * @param {State} state
 */
function showable(run, state) {
  const { needs, begins } = screenOf(state.screen);
  const able = run.attentions.filter((one) => needs === null || one.has?.[needs] !== false);
  const cross = begins === "sharpest" ? able.filter((one) => one.kind === "cross") : [];
  return cross.length ? cross : able;
}

/**
 * Return the attention and head of the state if the screen can show them, otherwise suggested ones.
 * @param {Run} run
 * @param {Attention[]} able
 * @param {State} state
 * @param {Fetched<Sharpest>} sharpest
 * @param {Fetched<Start>} start
 * @returns {Shown}
 */
function choose(run, able, state, sharpest, start) {
  const { begins, needs } = screenOf(state.screen);
  const isSharpest = takesSharpest(state);
  const suggestion = isSharpest ? sharpest : start;
  const best = suggestion.fresh && begins !== "query" ? suggestion.value : null;

  // The attention: by its place, by its kind, as suggested, or the first.
  const byKind = isSharpest ? undefined : able.find((one) => one.kind === state.kind);
  const chosen = able.find((one) => one.l === state.layer) ?? byKind;
  const attention = chosen ?? able.find((one) => one.l === best?.l) ?? able[0];

  // The head: an exported file holds the tiles of one head alone.
  const heads = (attention ?? run.attentions[0])?.heads ?? [];
  const wanted = [state.head, best && best.l === attention?.l ? best.h : null];
  const found = wanted.find((head) => head !== null && heads.includes(head));
  const held = needs === "tiles" ? run.held?.h : undefined;

  // A suggestion that has not arrived may still change the choice.
  const waits = isSharpest ? !chosen : takesStart(state) && state.query === null;
  const isAnswered = suggestion.fresh || suggestion.error !== null;
  return {
    able,
    attention,
    h: held ?? found ?? heads[0] ?? 0,
    isSettled: !waits || able.length === 0 || isAnswered,
  };
}

/**
 * Return the query that wrote the last word of a translation, for an attention whose queries write.
 * @param {Run} run
 * @param {Attention} attention
 */
export const lastWrittenQuery = (run, attention) =>
  attention.kind === "cross"
    ? run.output?.words.findLast((word) => /[\p{L}\p{N}]/u.test(word.name))?.i
    : undefined;
