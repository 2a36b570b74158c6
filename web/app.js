/** The frame around the screens: the sentence, the choice of screen, attention and head, and shortcuts for all screens. */
import { Answers, useAnswer } from "./answers.js";
import { Help } from "./help.js";
import { Answered, KINDS, layerOf } from "./parts/answered.js";
import { clipped, visible } from "./parts/text.js";
import { useKeys } from "./parts/use_keys.js";
import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "./preact.js";
import { SaveMenu } from "./saving/menu.js";
import { Alignment } from "./screens/alignment.js";
import { Geometry } from "./screens/geometry.js";
import { Heads } from "./screens/heads.js";
import { MapScreen } from "./screens/map.js";
import { Walk } from "./screens/walk.js";
import { SCREENS, statePath } from "./state.js";

/**
 * The component of each screen, its title, and the field of an attention's `has` that the screen needs.
 * @type {Record<string, {View: (props: ScreenProps) => any, title: string, needs: string}>}
 */
const VIEWS = {
  walk: { View: Walk, title: "Walk", needs: "trace" },
  heads: { View: Heads, title: "Heads", needs: "map" },
  geometry: { View: Geometry, title: "Geometry", needs: "geometry" },
  alignment: { View: Alignment, title: "Alignment", needs: "alignment" },
  map: { View: MapScreen, title: "Map", needs: "map" },
};

/** @typedef {{attention: Attention | undefined, h: number, settled: boolean}} Shown  `settled` once the choice is final */
/**
 * @typedef {Omit<ScreenProps, "run" | "attention" | "state" | "sharpest"> & {state: State, shown: Shown,
 *   sharpest: Fetched<Sharpest>}} SharedProps
 */

/**
 * Render the explorer into an element, and return the function that removes it.
 * @param {HTMLElement} element
 * @param {Transport} transport
 * @param {StateStore} store
 */
export function mount(element, transport, store) {
  element.classList.add("telescope");
  render(html`<${App} root=${element} transport=${transport} store=${store} />`, element);
  return () => render(null, element);
}

/** @param {{root: HTMLElement, transport: Transport, store: StateStore}} props */
function App({ root, transport, store }) {
  const [state, setState] = useState(() => store.read());
  const latest = useRef(state);
  latest.current = state;
  const answers = useMemo(() => new Answers(transport), [transport]);
  const [theme, toggleTheme] = useTheme(root);

  const go = useCallback(
    /** @type {Go} */
    (change, step = true) => {
      const next = { ...latest.current, ...change };
      latest.current = next;
      store.write(next, step);
      setState(next);
    },
    [],
  );
  useEffect(() => store.listen(setState), [store]);

  const [sent, setSent] = useState(0); // sentences run since the page was opened; each requests the list again
  const runs = useAnswer(answers, "runs", sent ? { sent } : undefined);
  useEffect(() => {
    const newest = runs.value?.runs?.[0];
    if (!state.run && newest) go({ run: newest.run }, false);
  }, [runs.value, state.run]);

  const answer = useAnswer(answers, state.run && `runs/${state.run}`);
  /** @type {Run | null} */
  const run = state.run ? answer.value : null;
  const compares = run && state.screen === "alignment" && showable(run, state).length;
  const sharpest = useAnswer(answers, compares ? `runs/${run.run}/sharpest` : null);
  const shown = run && choose(run, state, sharpest);
  const shared = { state, go, answers, transport, theme, root, shown, sharpest };
  return html`<div class="top">
      <div class="inside">
        <div class="masthead">
          <div class="brand">${LOGO}<h1>Telescope</h1></div>
          <${Sentence} run=${run} onSent=${() => setSent((n) => n + 1)} ...${shared} />
          <${Tools} run=${run} toggleTheme=${toggleTheme} ...${shared} />
        </div>
        <div class="bar">
          <nav class="tabs" aria-label="screens">
            ${SCREENS.map((screen) => html`<${Tab} ...${{ screen, run, state, go }} />`)}
          </nav>
          ${run && html`<${Choices} run=${run} runs=${runs.value?.runs ?? []} ...${shared} />`}
        </div>
      </div>
    </div>
    <main class="inside screen">
      ${
        !state.run && runs.value?.runs?.length === 0
          ? html`<p class="waiting">Nothing has been run yet. Type a sentence above.</p>`
          : html`<${Answered} answer=${state.run ? answer : runs}>${(value) => (value.attentions ? html`<${Screen} run=${value} ...${shared} />` : null)}<//>`
      }
    </main>
    <footer class="inside foot">
      <span>Every number here was computed by the model. Attention shows where a head looks; by itself it does not explain what the model does.</span>
    </footer>`;
}

/** @param {{screen: string, run: Run | null, state: State, go: Go}} props */
function Tab({ screen, run, state, go }) {
  /** @param {Event} event */
  const open = (event) => {
    event.preventDefault();
    go({ screen });
  };
  return html`<a href=${run ? statePath({ ...state, screen }) : "#"} aria-current=${state.screen === screen ? "page" : undefined} onClick=${open}>${VIEWS[screen].title}</a>`;
}

/**
 * The chosen screen, with an attention and a head that it can show.
 * @param {SharedProps & {run: Run}} props
 */
function Screen({ run, state, shown, sharpest, ...rest }) {
  const { attention, h } = shown;
  const { View, needs } = VIEWS[state.screen];
  if (!attention) {
    const why = run.attentions.map((one) => one.why?.[needs]).find(Boolean);
    return html`<p class="failure" role="status">${why ?? "This recording does not hold what this screen shows."}</p>`;
  }
  if (!shown.settled) return html`<${Answered} answer=${{ slow: sharpest.slow }} />`;
  return html`<${View} key=${run.run} run=${run} attention=${attention} state=${{ ...state, l: attention.l, h }} sharpest=${sharpest.value} ...${rest} />`;
}

/**
 * Return the attentions that the screen can show; for an alignment those between two texts, if there are any.
 * @param {Run} run
 * @param {State} state
 */
function showable(run, state) {
  const able = run.attentions.filter((one) => one.has?.[VIEWS[state.screen].needs] !== false);
  const cross = state.screen === "alignment" ? able.filter((one) => one.kind === "cross") : [];
  return cross.length ? cross : able;
}

/**
 * Return the attention and head of the state if the screen can show them, otherwise the first that it can; for an
 * alignment the sharpest.
 * @param {Run} run
 * @param {State} state
 * @param {Fetched<Sharpest>} sharpest
 * @returns {Shown}
 */
function choose(run, state, sharpest) {
  const able = showable(run, state);
  const best = state.screen === "alignment" && sharpest.fresh ? sharpest.value : null;
  const chosen = able.find((one) => one.l === state.l);
  const attention = chosen ?? able.find((one) => one.l === best?.l) ?? able[0];
  const { heads } = attention ?? run.attentions[0];
  const h = heads.find((head) => head === state.h) ?? (best && best.l === attention?.l ? best.h : heads[0]);
  return { attention, h, settled: state.screen !== "alignment" || Boolean(chosen) || Boolean(sharpest.fresh) };
}

/** @param {SharedProps & {run: Run | null, onSent: () => void}} props */
function Sentence({ run, transport, answers, go, onSent }) {
  const [text, setText] = useState(/** @type {string | null} */ (null));
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {string | null} */ (null));
  const [chosen, setChosen] = useState(/** @type {string | null} */ (null));
  const { value: models } = useAnswer(answers, transport.canRun ? "models" : null);
  const canRun = transport.canRun && Boolean(models?.default);
  /** @type {string[]} */
  const names = models?.models ?? [];
  const model = [chosen, run?.model, models?.default].find((name) => names.includes(name));
  const current = run?.text != null ? visible(run.text) : run && !canRun ? visible(run.title) : "";
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    const sentence = (text ?? run?.text ?? "").trim();
    if (!sentence || busy) return;
    setBusy(true);
    setProblem(null);
    try {
      const made = await transport.send?.("runs", { text: sentence, model });
      setText(null);
      setChosen(null);
      onSent();
      go({ ...NOTHING_CHOSEN, run: made.run });
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
    setBusy(false);
  };
  return html`<form class="sentence" onSubmit=${submit}>
    <input type="text" aria-label=${canRun ? "a sentence for the model" : "what was recorded"} maxlength="4000" readonly=${!canRun} autocomplete="off" spellcheck="false"
      value=${text ?? current} placeholder=${canRun && run ? `${visible(run.title)} is a recording; type a sentence` : ""} onInput=${(event) => setText(event.currentTarget.value)} />
    ${
      canRun &&
      names.length > 1 &&
      html`<select aria-label="the model that reads the sentence" value=${model} onChange=${(event) => setChosen(event.currentTarget.value)}>
      ${names.map((name) => html`<option value=${name} selected=${name === model}>${visible(name.split("/").at(-1))}</option>`)}</select>`
    }
    ${canRun && html`<button class="button strong" disabled=${busy}>${busy ? "running…" : "Run"}</button>`}
    ${busy && html`<span class="hidden" role="status">the model is running</span>`}
    ${problem && html`<p class="hidden" role="alert">${problem}</p>`}
  </form>
  ${problem && html`<p class="failure" style=${{ gridColumn: "1 / -1", margin: 0 }}>${problem}</p>`}`;
}

/** What was chosen in one run does not apply to another. @type {Partial<State>} */
const NOTHING_CHOSEN = Object.fromEntries(
  ["i", "j", "word", "x", "y", "z", "la", "a", "lb", "b"].map((name) => [name, null]),
);

/** @param {SharedProps & {run: Run, runs: Run[]}} props */
function Choices({ run, runs, state, go, shown }) {
  const others = runs.some((one) => one.run === run.run) ? runs : [run, ...runs];
  const attention = shown.attention ?? run.attentions[0];
  const kinds = [...new Set(run.attentions.map((one) => one.kind))];
  const able = showable(run, state);
  /** @param {Attention} one */
  const label = (one) => (kinds.length > 1 ? `${one.kind}, layer ${layerOf(one)}` : `layer ${layerOf(one)}`);
  return html`<div class="which">
    ${
      others.length > 1 &&
      html`<label class="labelled">run <select value=${run.run} onChange=${(event) => go({ ...NOTHING_CHOSEN, l: null, h: null, run: event.currentTarget.value })}>
      ${others.map((one) => html`<option value=${one.run} selected=${one.run === run.run}>${clipped(one.title, 22)}</option>`)}
    </select></label>`
    }
    <label class="labelled">attention <select value=${String(attention.l)} onChange=${(event) => go({ l: Number(event.currentTarget.value) })}>
      ${kinds.map(
        (kind) => html`<optgroup label=${KINDS[kind] ?? kind}>
        ${run.attentions
          .filter((one) => one.kind === kind)
          .map(
            (
              one,
            ) => html`<option value=${String(one.l)} disabled=${!able.includes(one)} selected=${one.l === attention.l}>
          ${label(one)}</option>`,
          )}
      </optgroup>`,
      )}
    </select></label>
    ${
      state.screen !== "geometry" &&
      html`<label class="labelled">head <select value=${String(shown.h)} onChange=${(event) => go({ h: Number(event.currentTarget.value) })}>
      ${attention.heads.map((h) => html`<option value=${String(h)} selected=${h === shown.h}>${h}</option>`)}
    </select></label>`
    }
  </div>`;
}

/** @param {SharedProps & {run: Run | null, toggleTheme: () => void}} props */
function Tools({ toggleTheme, theme, ...rest }) {
  const [help, setHelp] = useState(false);
  const { run, state, go, root, shown } = rest;
  useKeys(root, ({ key }) => {
    if (key === "?") setHelp(true);
    else if (key === "t") toggleTheme();
    else if (/^[1-5]$/.test(key)) go({ screen: SCREENS[Number(key) - 1] });
    else if (run && (key === "[" || key === "]")) {
      const { heads } = shown.attention ?? run.attentions[0];
      const next = heads[heads.indexOf(shown.h) + (key === "]" ? 1 : -1)];
      if (next !== undefined) go({ h: next });
    } else if (run && (key === "{" || key === "}")) {
      const able = showable(run, state);
      const next = able[able.findIndex((one) => one === shown.attention) + (key === "}" ? 1 : -1)];
      if (next) go({ l: next.l });
    } else return false;
    return true;
  });
  return html`<div class="tools">
    <button type="button" class="button square" onClick=${toggleTheme} aria-label=${theme === "dark" ? "light colours" : "dark colours"} title="light or dark (t)">${theme === "dark" ? "☀" : "☾"}</button>
    <${SaveMenu} ...${rest} />
    <button type="button" class="button square" onClick=${() => setHelp(true)} aria-label="help" title="help (?)">?</button>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}
  </div>`;
}

/**
 * Return whether the surroundings are dark: the nearest opaque background, as in a notebook, else the system's setting.
 * @param {HTMLElement} root
 */
function isDark(root) {
  for (let element = root.parentElement; element; element = element.parentElement) {
    const channels = getComputedStyle(element).backgroundColor.match(/[\d.]+/g) ?? [0, 0, 0, 0];
    const [r, g, b, opacity = 1] = channels.map(Number);
    if (opacity > 0.5) return 0.3 * r + 0.6 * g + 0.1 * b < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

const THEME_KEY = "telescope-theme";

/** @returns {Theme | null} */
const storedTheme = () => {
  try {
    return /** @type {Theme | null} */ (localStorage.getItem(THEME_KEY));
  } catch {
    return null; // a file opened from disk may have no storage
  }
};

/**
 * Return the theme and the function that toggles it; until the reader chooses, it follows the surroundings.
 * @param {HTMLElement} root
 */
function useTheme(root) {
  const chosen = useRef(/** @type {Theme | null | undefined} */ (undefined));
  if (chosen.current === undefined) chosen.current = storedTheme();
  /** @returns {Theme} */
  const currentTheme = () => chosen.current ?? (isDark(root) ? "dark" : "light");
  const [theme, setTheme] = useState(currentTheme);
  useEffect(() => {
    const update = () => setTheme(currentTheme());
    const system = matchMedia("(prefers-color-scheme: dark)");
    const attributes = new MutationObserver(() => setTimeout(update, 200)); // a notebook's colours change a little later
    const size = new ResizeObserver(update); // a notebook inserts the cell after it was made
    system.addEventListener("change", update);
    attributes.observe(document.body, { attributes: true });
    size.observe(root);
    return () => {
      system.removeEventListener("change", update);
      attributes.disconnect();
      size.disconnect();
    };
  }, []);
  root.dataset.theme = theme;
  const toggle = useCallback(() => {
    const next = currentTheme() === "dark" ? "light" : "dark";
    chosen.current = next;
    try {
      localStorage.setItem(THEME_KEY, next);
    } catch {
      // without storage the choice lasts as long as the page
    }
    setTheme(next);
  }, []);
  return /** @type {const} */ ([theme, toggle]);
}

const LOGO = html`<svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" fill="#1d2a44" /><path d="M6 23 24 8" stroke="#f3c969" stroke-width="3" stroke-linecap="round" /><circle cx="24" cy="8" r="4" fill="#f3c969" /><circle cx="8" cy="9" r="1.6" fill="#8fb3e0" /><circle cx="25" cy="23" r="2.4" fill="#8fb3e0" /></svg>`;
