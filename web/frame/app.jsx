/**
 * The frame around the screens: the state, the run, and what stands above, beside and below a
 * screen.
 */
import { render } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Answers, useAnswer } from "../answers.js";
import { AboutHandout, Recorded } from "../lessons/handout.jsx";
import { Landing } from "../lessons/landing.jsx";
import { BelowCaption, LessonBar } from "../lessons/lesson_bar.jsx";
import { Answered } from "../parts/answered.jsx";
import { asSentence } from "../parts/text.js";
import { AtlasScreen } from "../screens/atlas/index.jsx";
import { screenOf } from "../screens/index.js";
import { merge, NOTHING_CHOSEN } from "../state/state.js";
import { Choices, Folded, OutputLine, Tabs } from "./bar.jsx";
import { LostRun } from "./lost_run.jsx";
import { Masthead } from "./masthead.jsx";
import { ModelDrawing } from "./model_drawing.jsx";
import { pageTitle, PrintedAddress, TextAbove, useTitle } from "./presenting.jsx";
import { lastWrittenQuery, useShown } from "./shown.js";
import { useTheme } from "./theme.js";

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

/**
 * The whole page: it keeps the state, fetches the run, and hands both to its parts.
 * @param {{root: HTMLElement, transport: Transport, store: StateStore}} props
 */
function App({ root, transport, store }) {
  const answers = useMemo(() => new Answers(transport), [transport]);
  const [theme, toggleTheme] = useTheme(root);
  const { state, latest, go, openRun } = useStored(store, transport);

  // Each sentence that was run since the page was opened requests the list of runs again.
  const [sent, setSent] = useState(0);
  const onSent = () => setSent((n) => n + 1);
  const list = useAnswer(answers, "runs", sent ? { sent } : undefined);
  const runs = list.value?.runs ?? [];

  const [again, setAgain] = useState(0); // a run that was lost is asked for again
  const asked = again ? { again } : undefined;
  const answer = useAnswer(answers, state.run && `runs/${state.run}`, asked);
  useSource(answer, transport, state, latest, go);
  /** @type {Run | null} */
  const run = state.run && answer.value?.run === state.run ? answer.value : null;
  const { shown, ...suggested } = useShown(answers, run, state);
  const title = pageTitle(state, run, shown);
  useTitle(root, title);
  const isPresenting = state.presenting === 1 && state.run !== null;
  root.toggleAttribute("data-presenting", isPresenting);

  const shared = { state, go, openRun, answers, transport, theme, root, shown };
  const [unfolded, setUnfolded] = useState(false); // on a phone the choices are folded
  return (
    <>
      <div class={`top ${state.run ? "running" : ""} ${unfolded ? "unfolded" : ""}`}>
        <div class="inside">
          <Masthead {...shared} run={run} onSent={onSent} toggleTheme={toggleTheme} />
          {run?.notice && (
            <p class="notice" role="status">
              {run.notice}
            </p>
          )}
          {run?.output && <OutputLine {...shared} run={run} />}
          {state.run && (
            <div class="bar">
              <Tabs run={run} state={state} go={go} />
              {run && <Choices {...shared} run={run} runs={runs} />}
            </div>
          )}
          {run && shown && (
            <>
              <ModelDrawing {...{ run, state, go, shown, answers }} />
              <Folded
                run={run}
                shown={shown}
                open={unfolded}
                toggle={() => setUnfolded(!unfolded)}
              />
            </>
          )}
        </div>
      </div>
      {run && <TextAbove run={run} go={go} />}
      <LessonBar {...shared} run={run} />
      {transport.handout && <Recorded handout={transport.handout} run={run} openRun={openRun} />}
      <main class="inside screen" data-screen={state.screen}>
        <BelowCaption {...shared} run={run} />
        {state.atlas.name ? (
          <AtlasScreen {...shared} />
        ) : !state.run ? (
          <Landing {...shared} runs={runs} onSent={onSent} />
        ) : answer.error && transport.canRun ? (
          <LostRun
            key={state.run}
            {...shared}
            problem={answer.error}
            onSent={onSent}
            onFound={() => setAgain(again + 1)}
          />
        ) : (
          <Answered answer={answer}>
            {() => run && shown && <Screen {...shared} {...suggested} run={run} shown={shown} />}
          </Answered>
        )}
      </main>
      <PrintedAddress title={title} />
      <footer class="inside foot">
        <span>
          Every number here was computed by the model. Attention shows where a head looks; by itself
          it does not explain what the model does.
        </span>
        {transport.handout && <AboutHandout handout={transport.handout} />}
      </footer>
    </>
  );
}

/**
 * Keep in the state what makes the run of a sentence, so that the address makes it anywhere.
 * @param {Fetched<Run>} answer
 * @param {Transport} transport
 * @param {State} state
 * @param {{current: State}} latest  the state, also before it is rendered
 * @param {Go} go
 */
function useSource(answer, transport, state, latest, go) {
  const run = state.run && answer.fresh && transport.canRun ? answer.value : null;
  useEffect(() => {
    // The reader may have left for another run since this was rendered.
    if (!run || latest.current.run !== state.run) return;
    const isSentence = run.kind === "sentence" && run.text !== null;
    const source = {
      run: run.run,
      model: isSentence ? run.model : null,
      text: isSentence ? run.text : null,
      target: isSentence ? run.target : null,
    };
    const isKept = Object.entries(source).every(([name, value]) => {
      return /** @type {any} */ (state)[name] === value;
    });
    if (!isKept) go(source, false);
  }, [run, state]);
}

/**
 * Return the state of a store, and the functions that change it.
 * @param {StateStore} store
 * @param {Transport} transport
 */
function useStored(store, transport) {
  /** @param {State} read */
  const remembered = (read) => {
    transport.remember?.(read);
    return read;
  };
  const [state, setState] = useState(() => remembered(store.read()));
  // Two changes may follow each other before a render: the second starts from the first.
  const latest = useRef(state);
  const go = useCallback(
    /** @type {Go} */
    (change, step = true) => {
      const next = merge(latest.current, change);
      latest.current = next;
      store.write(next, step);
      setState(next);
    },
    [],
  );
  const openRun = useCallback(
    /** @type {OpenRun} */
    (run, change = {}) => go(merge({ ...NOTHING_CHOSEN, run }, change)),
    [],
  );
  useEffect(
    () =>
      store.listen((read) => {
        latest.current = remembered(read);
        setState(latest.current);
      }),
    [store],
  );
  return { state, latest, go, openRun };
}

/** What is said of a recording without any attention. */
const EMPTY = (
  <>
    No attention was called while this was recorded. Run the model inside the block: with
    ts.watch(model): …
  </>
);

/**
 * The chosen screen, with an attention and a head that it can show.
 * @param {FrameProps & {run: Run, shown: Shown, sharpest: Fetched<Sharpest>, start:
 *   Fetched<Start>}} props
 */
function Screen({ run, state, shown, sharpest, start, ...rest }) {
  const { attention, h } = shown;
  const { view: View, needs } = screenOf(state.screen);
  if (!attention) {
    const why = needs && run.attentions.map((one) => one.why?.[needs]).find(Boolean);
    const empty = run.attentions.length
      ? "This recording does not hold what this screen shows."
      : EMPTY;
    return (
      <p class="failure" role="status">
        {why ? asSentence(why) : empty}
      </p>
    );
  }
  if (!shown.isSettled)
    return <Answered answer={{ value: null, error: null, slow: sharpest.slow || start.slow }} />;
  const suggested = start.fresh && start.value ? start.value.i : null;
  const query = state.query ?? lastWrittenQuery(run, attention) ?? suggested;
  return (
    <View
      {...rest}
      key={run.example?.name ?? run.run}
      run={run}
      attention={attention}
      state={{ ...state, layer: attention.l, head: h, query }}
      sharpest={sharpest.fresh ? sharpest.value : null}
      start={start.fresh ? start.value : null}
    />
  );
}
