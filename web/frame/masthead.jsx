/**
 * The head of the page: the sentence that the model reads, the tools, and shortcuts for all
 * screens.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import { useAnswer } from "../answers.js";
import { afterSentence } from "../lessons/lessons.js";
import { useKeys } from "../parts/hooks.js";
import { isTooLong, LengthNote } from "../parts/length_note.jsx";
import { visible } from "../parts/text.js";
import { SaveMenu } from "../saving/menu.jsx";
import { offeredScreens } from "./shown.js";

/**
 * The name, which leads to all lessons, the sentence, and the tools.
 * @param {FrameProps & {run: Run | null, onSent: () => void, toggleTheme: () => void}} props
 */
export function Masthead({ onSent, toggleTheme, ...props }) {
  const { state, go, transport } = props;
  /** @param {Event} event */
  const openHome = (event) => {
    event.preventDefault();
    if (transport.canRun) go({ run: null, atlas: { name: null }, lesson: null, caption: null });
  };
  return (
    <div class="masthead">
      <a class="brand" href="/" aria-label="Telescope: all lessons" onClick={openHome}>
        {LOGO}
        <h1>Telescope</h1>
      </a>
      {state.run ? <Sentence {...props} onSent={onSent} /> : <span />}
      <Tools {...props} toggleTheme={toggleTheme} />
    </div>
  );
}

/** A screen on its stand. */
const SCREEN = (
  <svg class="glyph" viewBox="0 0 16 16" aria-hidden="true">
    <path d="M1.5 2.5h13v8.5h-13zM8 11v3M5 14h6" />
  </svg>
);

const LOGO = (
  <svg viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="7" fill="#1d2a44" />
    <path d="M6 23 24 8" stroke="#f3c969" stroke-width="3" stroke-linecap="round" />
    <circle cx="24" cy="8" r="4" fill="#f3c969" />
    <circle cx="8" cy="9" r="1.6" fill="#8fb3e0" />
    <circle cx="25" cy="23" r="2.4" fill="#8fb3e0" />
  </svg>
);

/**
 * The text of the run in a field; where a model is at hand, another text can be run.
 * @param {FrameProps & {run: Run | null, onSent: () => void}} props
 */
function Sentence({ run, state, transport, answers, openRun, onSent }) {
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
    if (!sentence || busy || isTooLong(sentence, models, model)) return;
    setBusy(true);
    setProblem(null);
    try {
      const made = await transport.send?.("runs", { text: sentence, model });
      setText(null);
      setChosen(null);
      onSent();
      openRun(made.run, afterSentence(state));
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
          <button class="button strong" disabled={busy || isTooLong(text ?? "", models, model)}>
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
      {canRun && text !== null && (
        <div class="length-note">
          <LengthNote text={text} models={models} model={model} />
        </div>
      )}
      {problem && (
        <p class="failure" style={{ gridColumn: "1 / -1", margin: 0 }}>
          {problem}
        </p>
      )}
    </>
  );
}

/**
 * Theme, saving and help, and the keys that work on every screen.
 * @param {FrameProps & {run: Run | null, toggleTheme: () => void}} props
 */
function Tools({ toggleTheme, theme, ...rest }) {
  const [help, setHelp] = useState(false);
  const { run, state, go, root, shown } = rest;
  useKeys(root, ({ key }) => {
    if (key === "?") setHelp(true);
    else if (key === "t") toggleTheme();
    else if (key === "p" && run) go({ presenting: state.presenting ? 0 : 1 }, false);
    else if (run && /^[1-9]$/.test(key)) {
      const offered = offeredScreens(run, state);
      if (!offered[Number(key) - 1]) return false;
      go({ screen: offered[Number(key) - 1] });
    } else if (shown && run && (key === "[" || key === "]")) {
      const heads = (shown.attention ?? run.attentions[0])?.heads ?? [];
      const next = heads[heads.indexOf(shown.h) + (key === "]" ? 1 : -1)];
      if (next !== undefined) go({ head: next });
    } else if (shown && (key === "{" || key === "}")) {
      const { able, attention } = shown;
      const next = able[able.findIndex((one) => one === attention) + (key === "}" ? 1 : -1)];
      if (next) go({ layer: next.l });
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
      {run && (
        <button
          type="button"
          class="button square"
          onClick={() => go({ presenting: 1 }, false)}
          aria-label="present"
          title="present: the screen alone, larger (p)"
        >
          {SCREEN}
        </button>
      )}
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

/** What the keys do; those of one screen are handled there. */
const KEYS = [
  ["1 … 9", "the screens, from left to right"],
  ["← →", "Walk: previous and next step. Map: pan"],
  ["↑ ↓", "Walk: previous and next query. Map: pan"],
  ["[ ]", "previous and next head"],
  ["{ }", "previous and next layer"],
  ["+ −", "Map: zoom in and out. Home: the whole matrix"],
  ["g", "Map: go to a query and a key"],
  ["w", "Walk, Heads: why a score is what it is. Escape: close"],
  ["f", "Walk, Heads: what follows the head"],
  ["p", "present the screen and its caption alone, larger; p again ends it"],
  ["Page ↓ ↑, Space", "while presenting: next and previous caption"],
  ["t", "light or dark"],
  ["?", "this help"],
];

/** The keyboard shortcuts, in a dialog. @param {{close: () => void}} props */
function Help({ close }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="telescope-help">
      <h2 id="telescope-help">Keys</h2>
      <dl class="keys">
        {KEYS.map(([key, does]) => (
          <>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{does}</dd>
          </>
        ))}
      </dl>
      <p class="soft">
        Strips, matrices and maps take the focus: arrow keys then go from number to number, each
        written out in full.
      </p>
      <p style={{ marginTop: "18px" }}>
        <button class="button strong" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </p>
    </dialog>
  );
}
