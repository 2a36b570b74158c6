/** The frame around the screens: the sentence, the choice of screen, attention and head, and shortcuts for all screens. */
import { render } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Answers, useAnswer } from "../answers.js";
import { Landing } from "../lessons/landing.jsx";
import { LessonBar } from "../lessons/lesson_bar.jsx";
import { NOTHING_CHOSEN } from "../lessons/open_run.js";
import { Answered, headName } from "../parts/answered.jsx";
import { useKeys } from "../parts/hooks.js";
import { clipped, visible } from "../parts/text.js";
import { SaveMenu } from "../saving/menu.jsx";
import { Alignment } from "../screens/alignment/index.jsx";
import { AtlasScreen } from "../screens/atlas/index.jsx";
import { Geometry } from "../screens/geometry.jsx";
import { Heads } from "../screens/heads/index.jsx";
import { MapScreen } from "../screens/map/index.jsx";
import { OutputScreen } from "../screens/output.jsx";
import { Positions } from "../screens/positions/index.jsx";
import { Sources } from "../screens/sources/index.jsx";
import { Variance } from "../screens/variance.jsx";
import { Walk } from "../screens/walk/index.jsx";
import { SCREENS, statePath } from "../state.js";
import { Help } from "./help.jsx";
import { ModelDrawing } from "./model_drawing.jsx";
import { OutputLine } from "./output_line.jsx";

/**
 * The component of each screen, its title, and the field of an attention's `has` that the screen needs, if any.
 * @type {Record<string, {View: (props: ScreenProps) => any, title: string, needs: string | null}>}
 */
const VIEWS = {
  walk: { View: Walk, title: "Walk", needs: "trace" },
  heads: { View: Heads, title: "Heads", needs: "map" },
  geometry: { View: Geometry, title: "Geometry", needs: "geometry" },
  alignment: { View: Alignment, title: "Alignment", needs: "alignment" },
  map: { View: MapScreen, title: "Map", needs: "tiles" },
  sources: { View: Sources, title: "Sources", needs: null },
  output: { View: OutputScreen, title: "Output", needs: null },
  variance: { View: Variance, title: "Why √d", needs: null },
  positions: { View: Positions, title: "Positions", needs: "positions" },
};

/** @typedef {{attention: Attention | undefined, h: number, settled: boolean}} Shown  `settled` once the choice is final */
/**
 * @typedef {Omit<ScreenProps, "run" | "attention" | "state" | "sharpest" | "start"> & {state: State, shown: any,
 *   sharpest: Fetched<Sharpest>, start: Fetched<Start>}} SharedProps
 */

/**
 * Render the explorer into an element, and return the function that removes it.
 * @param {HTMLElement} element
 * @param {Transport} transport
 * @param {StateStore} store
 */
export function mount(element, transport, store) {
  element.classList.add("telescope");
  render(<App root={element} transport={transport} store={store} />, element);
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
  const onSent = () => setSent((n) => n + 1);
  const runs = useAnswer(answers, "runs", sent ? { sent } : undefined);

  const answer = useAnswer(answers, state.run && `runs/${state.run}`);
  /** @type {Run | null} */
  const run = state.run && answer.value?.run === state.run ? answer.value : null;
  const able = run ? showable(run, state).length : 0;
  const sharpest = useAnswer(
    answers,
    run && able && asksForSharpest(state) ? `runs/${run.run}/sharpest` : null,
  );
  const starts =
    run &&
    able &&
    STARTING.has(state.screen) &&
    (state.l === null || state.h === null || state.i === null);
  const start = useAnswer(answers, starts ? `runs/${run.run}/start` : null);
  const shown = run && choose(run, state, sharpest, start);
  const shared = { state, go, answers, transport, theme, root, shown, sharpest, start };
  const [unfolded, setUnfolded] = useState(false); // on a phone the choices are folded
  return (
    <>
      <div class={`top ${state.run ? "running" : ""} ${unfolded ? "unfolded" : ""}`}>
        <div class="inside">
          <div class="masthead">
            <a
              class="brand"
              href="/"
              aria-label="Telescope: all lessons"
              onClick={openHome(transport, go)}
            >
              {LOGO}
              <h1>Telescope</h1>
            </a>
            {state.run ? <Sentence run={run} onSent={onSent} {...shared} /> : <span />}
            <Tools run={run} toggleTheme={toggleTheme} {...shared} />
          </div>
          {run?.notice && (
            <p class="notice" role="status">
              {run.notice}
            </p>
          )}
          {run?.output && <OutputLine run={run} {...shared} />}
          {state.run && (
            <>
              <div class="bar">
                <nav class="tabs" aria-label="screens">
                  {SCREENS.filter((screen) => isOffered(screen, run, state)).map((screen) => (
                    <Tab screen={screen} run={run} state={state} go={go} />
                  ))}
                </nav>
                {run && <Choices run={run} runs={runs.value?.runs ?? []} {...shared} />}
              </div>
              {run && (
                <ModelDrawing
                  run={run}
                  state={state}
                  go={go}
                  shown={/** @type {Shown} */ (shown)}
                  able={showable(run, state)}
                />
              )}
              {run && (
                <Folded
                  run={run}
                  shown={shown}
                  open={unfolded}
                  toggle={() => setUnfolded(!unfolded)}
                />
              )}
            </>
          )}
        </div>
      </div>
      <LessonBar state={state} run={run} go={go} answers={answers} transport={transport} />
      <main class="inside screen">
        {state.atlas ? (
          <AtlasScreen
            state={state}
            go={go}
            answers={answers}
            transport={transport}
            root={root}
            theme={theme}
          />
        ) : !state.run ? (
          <Landing
            go={go}
            answers={answers}
            transport={transport}
            onSent={onSent}
            runs={runs.value?.runs ?? []}
          />
        ) : (
          <Answered answer={answer}>
            {(/** @type {Run} */ value) =>
              value.run === state.run ? <Screen run={value} {...shared} /> : null
            }
          </Answered>
        )}
      </main>
      <footer class="inside foot">
        <span>
          Every number here was computed by the model. Attention shows where a head looks; by itself
          it does not explain what the model does.
        </span>
      </footer>
    </>
  );
}

/**
 * What is chosen, in one line; on a phone a click unfolds the choices: model, run, attention, head.
 * @param {{run: Run, shown: Shown | null, open: boolean, toggle: () => void}} props
 */
function Folded({ run, shown, open, toggle }) {
  const chosen = shown?.attention ? headName(shown.attention, shown.h) : "";
  const wrote = run.written ?? "";
  return (
    <button type="button" class="folded" aria-expanded={open} onClick={toggle}>
      <span>
        {[chosen, wrote && `“${visible(wrote)}”`].filter(Boolean).join(" · ") || "choices"}
      </span>
    </button>
  );
}

/** The screens that begin where `start` says. */
const STARTING = new Set(["walk", "heads", "positions"]);

/** @type {(transport: Transport, go: Go) => (event: Event) => void} */
const openHome = (transport, go) => (event) => {
  event.preventDefault();
  if (transport.canRun) go({ run: null, atlas: null, card: null, at: null });
};

/** @type {(screen: string, run: Run | null, state: State) => boolean} */
const isOffered = (screen, run, state) =>
  screen === state.screen ||
  (screen === "output"
    ? Boolean(run?.output)
    : screen === "variance" || screen === "sources"
      ? (run?.kind === "example") === (screen === "variance")
      : screen !== "positions" || !run?.held || run.attentions.some((one) => one.has?.positions));

/** @param {{screen: string, run: Run | null, state: State, go: Go}} props */
function Tab({ screen, run, state, go }) {
  /** @param {Event} event */
  const open = (event) => {
    event.preventDefault();
    go({ screen });
  };
  return (
    <a
      href={run ? statePath({ ...state, screen }) : "#"}
      aria-current={state.screen === screen ? "page" : undefined}
      onClick={open}
    >
      {VIEWS[screen].title}
    </a>
  );
}

/**
 * The chosen screen, with an attention and a head that it can show.
 * @param {SharedProps & {run: Run}} props
 */
function Screen({ run, state, shown, sharpest, start, ...rest }) {
  const { attention, h } = shown;
  const { View, needs } = VIEWS[state.screen];
  if (!attention) {
    const why = needs && run.attentions.map((one) => one.why?.[needs]).find(Boolean);
    const empty = run.attentions.length
      ? "This recording does not hold what this screen shows."
      : EMPTY;
    return (
      <p class="failure" role="status">
        {why ? `${why[0].toUpperCase()}${why.slice(1)}.` : empty}
      </p>
    );
  }
  if (!shown.settled)
    return <Answered answer={{ value: null, error: null, slow: sharpest.slow || start.slow }} />;
  const i =
    state.i ?? writtenLast(run, attention) ?? (start.fresh && start.value ? start.value.i : null);
  const given = {
    run,
    attention,
    state: { ...state, l: attention.l, h, i },
    sharpest: sharpest.value,
  };
  return <View key={run.example?.name ?? run.run} start={start.value} {...given} {...rest} />;
}

/**
 * Return the query that wrote the last word of a translation, for an attention whose queries write.
 * @param {Run} run
 * @param {Attention} attention
 */
const writtenLast = (run, attention) =>
  attention.kind === "cross"
    ? run.output?.words.findLast((word) => /[\p{L}\p{N}]/u.test(word.name))?.i
    : undefined;

/** Whether the attention between two texts that is shown is the sharpest, until one is chosen. @type {(state: State) => boolean} */
const asksForSharpest = (state) =>
  state.screen === "alignment" || (state.kind === "cross" && state.l === null);

const EMPTY =
  "No attention was called while this was recorded. Run the model inside the block: with ts.watch(model): …";

/**
 * Return the attentions that the screen can show; for an alignment those between two texts, if there are any.
 * @param {Run} run
 * @param {State} state
 */
function showable(run, state) {
  const { needs } = VIEWS[state.screen];
  const able = run.attentions.filter((one) => needs === null || one.has?.[needs] !== false);
  const cross = state.screen === "alignment" ? able.filter((one) => one.kind === "cross") : [];
  return cross.length ? cross : able;
}

/**
 * Return the attention and head of the state if the screen can show them, otherwise those where a reader should begin;
 * for an alignment the sharpest.
 * @param {Run} run
 * @param {State} state
 * @param {Fetched<Sharpest>} sharpest
 * @param {Fetched<Start>} start
 * @returns {Shown}
 */
function choose(run, state, sharpest, start) {
  const able = showable(run, state);
  const suggestion = asksForSharpest(state) ? sharpest : start;
  // positions are added before the first layer, so that screen begins there
  const best = suggestion.fresh && state.screen !== "positions" ? suggestion.value : null;
  const chosen =
    able.find((one) => one.l === state.l) ??
    (asksForSharpest(state) ? undefined : able.find((one) => one.kind === state.kind));
  const attention = chosen ?? able.find((one) => one.l === best?.l) ?? able[0];
  const heads = (attention ?? run.attentions[0])?.heads ?? [];
  const suggested = best && best.l === attention?.l ? best.h : null;
  const held = run.held && state.screen === "map" ? run.held.h : undefined;
  const h =
    held ??
    heads.find((head) => head === state.h) ??
    heads.find((head) => head === suggested) ??
    heads[0] ??
    0;
  const waits = asksForSharpest(state) ? !chosen : STARTING.has(state.screen) && state.i === null;
  const answered = suggestion.fresh || suggestion.error !== null;
  return { attention, h, settled: !waits || able.length === 0 || answered };
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
  const kind = run?.kind === "example" ? "a worked example" : "a recording";
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
      go({ ...NOTHING_CHOSEN, card: null, at: null, run: made.run });
    } catch (failure) {
      setProblem(/** @type {Error} */ (failure).message);
    }
    setBusy(false);
  };
  return (
    <>
      <form class="sentence" onSubmit={submit}>
        <input
          type="text"
          aria-label={canRun ? "a sentence for the model" : "what was recorded"}
          maxlength={4000}
          readonly={!canRun}
          autocomplete="off"
          spellcheck={false}
          value={text ?? current}
          placeholder={canRun && run ? `${visible(run.title)} is ${kind}; type a sentence` : ""}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        {canRun && names.length > 1 && (
          <select
            aria-label="the model that reads the sentence"
            value={model}
            onChange={(event) => setChosen(event.currentTarget.value)}
          >
            {names.map((name) => (
              <option value={name} selected={name === model}>
                {visible(name.split("/").at(-1))}
              </option>
            ))}
          </select>
        )}
        {canRun && (
          <button class="button strong" disabled={busy}>
            {busy ? "running…" : "Run"}
          </button>
        )}
        {busy && (
          <span class="hidden" role="status">
            the model is running
          </span>
        )}
        {problem && (
          <p class="hidden" role="alert">
            {problem}
          </p>
        )}
      </form>
      {problem && (
        <p class="failure" style={{ gridColumn: "1 / -1", margin: 0 }}>
          {problem}
        </p>
      )}
    </>
  );
}

/** @param {SharedProps & {run: Run, runs: Run[]}} props */
function Choices({ run, runs, state, go }) {
  const others = runs.some((one) => one.run === run.run) ? runs : [run, ...runs];
  const hasPieces =
    run.kind !== "example" && ["walk", "heads", "geometry", "positions"].includes(state.screen);
  return (
    <div class="which">
      {others.length > 1 && (
        <label class="labelled">
          run{" "}
          <select
            value={run.run}
            onChange={(event) =>
              go({ ...NOTHING_CHOSEN, card: null, at: null, run: event.currentTarget.value })
            }
          >
            {others.map((one) => (
              <option value={one.run} selected={one.run === run.run}>
                {clipped(one.title, 22)}
              </option>
            ))}
          </select>
        </label>
      )}
      {hasPieces && (
        <span class="segments" role="group" aria-label="words or the pieces that the model reads">
          {["words", "pieces"].map((label, at) => (
            <button
              type="button"
              aria-pressed={state.pieces === at}
              onClick={() => go({ pieces: at }, false)}
            >
              {label}
            </button>
          ))}
        </span>
      )}
    </div>
  );
}

/** @param {SharedProps & {run: Run | null, toggleTheme: () => void}} props */
function Tools({ toggleTheme, theme, ...rest }) {
  const [help, setHelp] = useState(false);
  const { run, state, go, root, shown } = rest;
  useKeys(root, ({ key }) => {
    if (key === "?") setHelp(true);
    else if (key === "t") toggleTheme();
    else if (run && /^[1-9]$/.test(key)) {
      const offered = SCREENS.filter((screen) => isOffered(screen, run, state));
      if (!offered[Number(key) - 1]) return false;
      go({ screen: offered[Number(key) - 1] });
    } else if (run && (key === "[" || key === "]")) {
      const heads = (shown.attention ?? run.attentions[0])?.heads ?? [];
      const next = heads[heads.indexOf(shown.h) + (key === "]" ? 1 : -1)];
      if (next !== undefined) go({ h: next });
    } else if (run && (key === "{" || key === "}")) {
      const able = showable(run, state);
      const next = able[able.findIndex((one) => one === shown.attention) + (key === "}" ? 1 : -1)];
      if (next) go({ l: next.l });
    } else return false;
    return true;
  });
  return (
    <div class="tools">
      <button
        type="button"
        class="button square"
        onClick={toggleTheme}
        aria-label={theme === "dark" ? "light colours" : "dark colours"}
        title="light or dark (t)"
      >
        {theme === "dark" ? "☀" : "☾"}
      </button>
      <SaveMenu {...rest} />
      <button
        type="button"
        class="button square"
        onClick={() => setHelp(true)}
        aria-label="help"
        title="help (?)"
      >
        ?
      </button>
      {help && <Help close={() => setHelp(false)} />}
    </div>
  );
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

const LOGO = (
  <svg viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="7" fill="#1d2a44" />
    <path d="M6 23 24 8" stroke="#f3c969" stroke-width="3" stroke-linecap="round" />
    <circle cx="24" cy="8" r="4" fill="#f3c969" />
    <circle cx="8" cy="9" r="1.6" fill="#8fb3e0" />
    <circle cx="25" cy="23" r="2.4" fill="#8fb3e0" />
  </svg>
);
