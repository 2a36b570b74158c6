/** The map's toolbar: aggregate, scale, palette, zoom, and a form that goes to a cell. */
import { PALETTES } from "../parts/colour.js";
import { clamp } from "../parts/numbers.js";
import { html } from "../preact.js";
import { AGGREGATES } from "./colouring.js";

/**
 * @param {{info: MapInfo, state: State, go: Go, zoomBy: (levels: number) => void, showAll: () => void,
 *   jump: (i: number, j: number) => void, queryField: {current: HTMLInputElement | null}}} props
 */
export function Toolbar({ info, state, go, zoomBy, showAll, jump, queryField }) {
  const available = Object.entries(AGGREGATES).filter(([, { from }]) => info.how.includes(from));
  /** @type {(event: Event & {currentTarget: HTMLFormElement}) => void} */
  const submit = (event) => {
    event.preventDefault();
    const fields = new FormData(event.currentTarget);
    const [i, j] = ["i", "j"].map((name) => Number(fields.get(name)));
    if (Number.isInteger(i) && Number.isInteger(j)) jump(clamp(i, 0, info.n_q - 1), clamp(j, 0, info.n_k - 1));
  };
  return html`<div class="mapbar">
    <span class="segments" role="group" aria-label="what a pixel shows">${available.map(
      ([name, { means }]) =>
        html`<button type="button" title=${means} aria-pressed=${state.how === name} onClick=${() => go({ how: name, lim: null })}>${name}</button>`,
    )}</span>
    <span class="segments" role="group" aria-label="scale">${["log", "linear"].map(
      (name) =>
        html`<button type="button" aria-pressed=${state.scale === name} onClick=${() => go({ scale: name })}>${name}</button>`,
    )}</span>
    <label class="labelled">colours <select value=${state.palette} onChange=${(event) => go({ palette: event.currentTarget.value })}>${Object.keys(
      PALETTES,
    ).map((name) => html`<option value=${name} selected=${name === state.palette}>${name}</option>`)}</select></label>
    <span class="segments" role="group" aria-label="zoom"><button type="button" aria-label="zoom out" onClick=${() => zoomBy(-1)}>−</button><button type="button" aria-label="zoom in" onClick=${() => zoomBy(1)}>+</button><button type="button" onClick=${showAll}>all</button></span>
    <form class="goto" onSubmit=${submit}>
      <label class="labelled">query <input class="field" name="i" ref=${queryField} inputmode="numeric" pattern="[0-9]*" required autocomplete="off" /></label>
      <label class="labelled">key <input class="field" name="j" inputmode="numeric" pattern="[0-9]*" required autocomplete="off" /></label>
      <button class="button">go</button>
    </form>
  </div>`;
}
