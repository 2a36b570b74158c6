/** The frame: the sentence, the screens, which attention and which head; and the keys that work everywhere. */
import { Answers, useAnswer } from "./answers.js";
import { Help } from "./help.js";
import { useKeys } from "./parts/keys.js";
import { Asked, KINDS, layerOf } from "./parts/shell.js";
import { clipped, visible } from "./parts/text.js";
import { Saving } from "./saving/menu.js";
import { Alignment } from "./screens/alignment.js";
import { Geometry } from "./screens/geometry.js";
import { Heads } from "./screens/heads.js";
import { Map } from "./screens/map.js";
import { Walk } from "./screens/walk.js";
import { SCREENS, written } from "./state.js";
import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "./ui.js";

const VIEWS = { walk: Walk, heads: Heads, geometry: Geometry, alignment: Alignment, map: Map };
const TITLES = { walk: "Walk", heads: "Heads", geometry: "Geometry", alignment: "Alignment", map: "Map" };
const NEEDS = { walk: "trace", heads: "map", geometry: "geometry", alignment: "alignment", map: "map" };

export function mount(element, transport, place) {
  element.classList.add("telescope");
  render(html`<${App} root=${element} transport=${transport} place=${place} />`, element);
  return () => render(null, element);
}

function App({ root, transport, place }) {
  const [state, setState] = useState(() => place.read());
  const now = useRef(state);
  now.current = state;
  const answers = useMemo(() => new Answers(transport), [transport]);
  const [theme, toggle] = useTheme(root);

  const go = useCallback((change, step = true) => {
    const next = { ...now.current, ...change };
    now.current = next;
    place.write(next, step);
    setState(next);
  }, []);
  useEffect(() => place.listen(setState), [place]);

  const [ran, setRan] = useState(0); // sentences of one's own since the page was opened
  const runs = useAnswer(answers, "runs", ran ? { ran } : undefined);
  useEffect(() => {
    const latest = runs.value?.runs?.[0];
    if (!state.run && latest) go({ run: latest.run }, false);
  }, [runs.value, state.run]);

  const asked = useAnswer(answers, state.run && `runs/${state.run}`);
  const run = state.run ? asked.value : null;
  const sharpest = useAnswer(answers, run && state.screen === "alignment" && fitting(run, state).length ? `runs/${run.run}/sharpest` : null);
  const shown = run && chosen(run, state, sharpest);
  const shared = { state, go, answers, transport, theme, root, shown, sharpest };
  return html`<div class="top">
      <div class="inside">
        <div class="masthead">
          <div class="brand">${LOGO}<h1>Telescope</h1></div>
          <${Sentence} run=${run} heard=${() => setRan((n) => n + 1)} ...${shared} />
          <${Tools} run=${run} toggle=${toggle} ...${shared} />
        </div>
        <div class="bar">
          <nav class="tabs" aria-label="screens">
            ${SCREENS.map((name) => html`<a href=${run ? place.href?.({ ...state, screen: name }) ?? written({ ...state, screen: name }) : "#"}
              aria-current=${state.screen === name ? "page" : undefined}
              onClick=${(event) => { event.preventDefault(); go({ screen: name }); }}>${TITLES[name]}</a>`)}
          </nav>
          ${run && html`<${Which} run=${run} runs=${runs.value?.runs ?? []} ...${shared} />`}
        </div>
      </div>
    </div>
    <main class="inside screen">
      ${!state.run && runs.value?.runs?.length === 0
        ? html`<p class="waiting">Nothing has been run yet. Type a sentence above.</p>`
        : html`<${Asked} of=${state.run ? asked : runs}>${(value) => (value.attentions ? html`<${Screen} run=${value} ...${shared} />` : null)}<//>`}
    </main>
    <footer class="inside foot">
      <span>Every number on this page was computed by the model, none is made up. Attention shows where a head looks; it is not by itself an explanation of what the model does.</span>
    </footer>`;
}

/** The screen, on an attention and a head that it can show. */
function Screen({ run, state, go, shown, sharpest, ...rest }) {
  const { attention, h } = shown;
  if (!attention) {
    const why = run.attentions.map((one) => one.why?.[NEEDS[state.screen]]).find(Boolean);
    return html`<p class="failure" role="status">${why ?? "This recording does not hold what this screen shows."}</p>`;
  }
  if (!shown.settled) return html`<${Asked} of=${{ slow: sharpest.slow }} />`;
  const View = VIEWS[state.screen];
  return html`<${View} key=${run.run} run=${run} attention=${attention} state=${{ ...state, l: attention.l, h }} go=${go} sharpest=${sharpest.value} ...${rest} />`;
}

/** What a screen can show; an alignment is one between two texts, if there are any. */
function fitting(run, state) {
  const fit = run.attentions.filter((one) => one.has?.[NEEDS[state.screen]] !== false);
  const between = state.screen === "alignment" ? fit.filter((one) => one.kind === "cross") : [];
  return between.length ? between : fit;
}

/** What was chosen, if this screen can show it; else the first that it can, and of alignments the sharpest. */
function chosen(run, state, sharpest) {
  const fit = fitting(run, state);
  const best = state.screen === "alignment" && sharpest.fresh ? sharpest.value : null;
  const told = fit.find((one) => one.l === state.l);
  const attention = told ?? fit.find((one) => one.l === best?.l) ?? fit[0];
  const { heads } = attention ?? run.attentions[0];
  const h = heads.includes(state.h) ? state.h : best && best.l === attention.l ? best.h : heads[0];
  return { attention, h, settled: state.screen !== "alignment" || Boolean(told) || sharpest.fresh };
}

function Sentence({ run, transport, answers, go, heard }) {
  const [text, setText] = useState(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const models = useAnswer(answers, transport.runs ? "models" : null);
  const can = transport.runs && Boolean(models.value?.default);
  const [chosen, setChosen] = useState(null);
  const known = models.value?.models ?? [];
  const model = [chosen, run?.model, models.value?.default].find((name) => known.includes(name));
  const said = run?.text != null ? visible(run.text) : run && !can ? visible(run.title) : "";
  const submit = async (event) => {
    event.preventDefault();
    const given = (text ?? run?.text ?? "").trim();
    if (!given || busy) return;
    setBusy(true);
    setProblem(null);
    try {
      const made = await transport.send("runs", { text: given, model });
      setText(null);
      setChosen(null);
      heard();
      go({ ...ANEW, run: made.run });
    } catch (failure) {
      setProblem(failure.message);
    }
    setBusy(false);
  };
  return html`<form class="sentence" onSubmit=${submit}>
    <input type="text" aria-label=${can ? "a sentence for the model" : "what was recorded"} maxlength="4000" readonly=${!can} autocomplete="off" spellcheck="false"
      value=${text ?? said} placeholder=${can && run ? `${visible(run.title)} is a recording; type a sentence` : ""} onInput=${(event) => setText(event.currentTarget.value)} />
    ${can && known.length > 1 && html`<select aria-label="the model that reads it" value=${model} onChange=${(event) => setChosen(event.currentTarget.value)}>
      ${known.map((name) => html`<option value=${name} selected=${name === model}>${visible(name.split("/").at(-1))}</option>`)}</select>`}
    ${can && html`<button class="button strong" disabled=${busy}>${busy ? "running…" : "Run"}</button>`}
    ${busy && html`<span class="hidden" role="status">the model reads the sentence</span>`}
    ${problem && html`<p class="hidden" role="alert">${problem}</p>`}
  </form>
  ${problem && html`<p class="failure" style=${{ gridColumn: "1 / -1", margin: 0 }}>${problem}</p>`}`;
}

/** Of another run, what was chosen in this one means nothing. */
const ANEW = Object.fromEntries(["i", "j", "word", "x", "y", "z", "la", "a", "lb", "b"].map((name) => [name, null]));

function Which({ run, runs, state, go, shown }) {
  const others = runs.some((one) => one.run === run.run) ? runs : [run, ...runs];
  const attention = shown.attention ?? run.attentions[0];
  const kinds = [...new Set(run.attentions.map((one) => one.kind))];
  const fit = fitting(run, state);
  const headless = state.screen === "geometry";
  return html`<div class="which">
    ${others.length > 1 && html`<label class="labelled">run <select value=${run.run} onChange=${(event) => go({ ...ANEW, l: null, h: null, run: event.currentTarget.value })}>
      ${others.map((one) => html`<option value=${one.run} selected=${one.run === run.run}>${clipped(one.title, 22)}</option>`)}
    </select></label>`}
    <label class="labelled">attention <select value=${String(attention.l)} onChange=${(event) => go({ l: Number(event.currentTarget.value) })}>
      ${kinds.map((kind) => html`<optgroup label=${KINDS[kind] ?? kind}>
        ${run.attentions.filter((one) => one.kind === kind).map((one) => html`<option value=${String(one.l)} disabled=${!fit.includes(one)} selected=${one.l === attention.l}>
          ${kinds.length > 1 ? `${kind}, layer ${layerOf(one)}` : `layer ${layerOf(one)}`}</option>`)}
      </optgroup>`)}
    </select></label>
    ${!headless && html`<label class="labelled">head <select value=${String(shown.h)} onChange=${(event) => go({ h: Number(event.currentTarget.value) })}>
      ${attention.heads.map((h) => html`<option value=${String(h)} selected=${h === shown.h}>${h}</option>`)}
    </select></label>`}
  </div>`;
}

function Tools({ toggle, theme, ...rest }) {
  const [help, setHelp] = useState(false);
  const { run, state, go, root, shown } = rest;
  useKeys(root, ({ key }) => {
    if (key === "?") setHelp(true);
    else if (key === "t") toggle();
    else if (/^[1-5]$/.test(key)) go({ screen: SCREENS[key - 1] });
    else if (run && (key === "[" || key === "]")) {
      const { heads } = shown.attention ?? run.attentions[0];
      const next = heads[heads.indexOf(shown.h) + (key === "]" ? 1 : -1)];
      if (next !== undefined) go({ h: next });
    } else if (run && (key === "{" || key === "}")) {
      const fit = fitting(run, state);
      const next = fit[fit.indexOf(shown.attention) + (key === "}" ? 1 : -1)];
      if (next) go({ l: next.l });
    } else return false;
    return true;
  });
  return html`<div class="tools">
    <button type="button" class="button square" onClick=${toggle} aria-label=${theme === "dark" ? "light colours" : "dark colours"} title="light or dark (t)">${theme === "dark" ? "☀" : "☾"}</button>
    <${Saving} ...${rest} />
    <button type="button" class="button square" onClick=${() => setHelp(true)} aria-label="help" title="help (?)">?</button>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}
  </div>`;
}

/** As what it stands on has it, a notebook with a theme of its own; else as the reader's system has it. */
function dark(root) {
  for (let one = root.parentElement; one; one = one.parentElement) {
    const [r, g, b, opaque = 1] = (getComputedStyle(one).backgroundColor.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
    if (opaque > 0.5) return 0.3 * r + 0.6 * g + 0.1 * b < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** As it is around it, until the reader says otherwise. */
function useTheme(root) {
  const said = useRef(undefined);
  if (said.current === undefined) said.current = kept();
  const now = () => said.current ?? (dark(root) ? "dark" : "light");
  const [theme, setTheme] = useState(now);
  useEffect(() => {
    const changed = () => setTheme(now());
    const system = matchMedia("(prefers-color-scheme: dark)");
    const around = new MutationObserver(() => setTimeout(changed, 200)); // its colours come a little later
    const there = new ResizeObserver(changed); // it is put into a notebook after it was made
    system.addEventListener("change", changed);
    around.observe(document.body, { attributes: true });
    there.observe(root);
    return () => { system.removeEventListener("change", changed); around.disconnect(); there.disconnect(); };
  }, []);
  root.dataset.theme = theme;
  const toggle = useCallback(() => {
    said.current = now() === "dark" ? "light" : "dark";
    try { localStorage.setItem("telescope-theme", said.current); } catch { /* a file opened from disk may have no store */ }
    setTheme(said.current);
  }, []);
  return [theme, toggle];
}

const kept = () => { try { return localStorage.getItem("telescope-theme"); } catch { return null; } };

const LOGO = html`<svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" fill="#1d2a44" /><path d="M6 23 24 8" stroke="#f3c969" stroke-width="3" stroke-linecap="round" /><circle cx="24" cy="8" r="4" fill="#f3c969" /><circle cx="8" cy="9" r="1.6" fill="#8fb3e0" /><circle cx="25" cy="23" r="2.4" fill="#8fb3e0" /></svg>`;
