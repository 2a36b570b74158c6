/** Save what is seen. */
import { html, useEffect, useRef, useState } from "../ui.js";
import { asPng, asSvg, saved } from "./save.js";

export function Saving({ run, state, shown, transport, root }) {
  const [open, setOpen] = useState(false);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(null);
  const place = useRef(null);
  useEffect(() => {
    if (!open) return undefined;
    place.current.querySelector(".menu button")?.focus();
    const away = (event) => (event.type === "keydown" ? event.key === "Escape" : !place.current?.contains(event.target)) && setOpen(false);
    document.addEventListener("pointerdown", away);
    document.addEventListener("keydown", away);
    return () => {
      document.removeEventListener("pointerdown", away);
      document.removeEventListener("keydown", away);
    };
  }, [open]);
  if (!run) return null;
  const name = `telescope-${state.screen}`;
  const here = { l: shown.attention?.l, h: shown.h, i: state.i };
  const how = {
    "Picture (PNG)": async () => saved(await asPng(root), `${name}.png`),
    "Drawing (SVG)": async () => saved(new Blob([asSvg(root).text], { type: "image/svg+xml" }), `${name}.svg`),
    ...(transport.file && {
      "Page that opens from disk (HTML)": async () => saved(await transport.file(run, here, "html"), "telescope.html"),
      "All its numbers (JSON)": async () => saved(await transport.file(run, here, "json"), "telescope.json"),
    }),
  };
  const take = (label, make) => async () => {
    setProblem(null);
    setBusy(label);
    try {
      await make();
      setOpen(false);
    } catch (failure) {
      setProblem(failure.message);
    }
    setBusy(null);
  };
  return html`<div ref=${place} style=${{ position: "relative" }}>
    <button type="button" class="button square" aria-label="save this view" title="save this view" aria-expanded=${open} aria-haspopup="true" onClick=${() => { setOpen(!open); setProblem(null); }}>⤓</button>
    ${open && html`<div class="menu">${Object.entries(how).map(([label, make]) => html`<button type="button" disabled=${busy !== null} onClick=${take(label, make)}>${label}${busy === label ? html` <span role="status">…</span>` : ""}</button>`)}
      ${problem && html`<p class="soft" role="alert" style=${{ maxWidth: "30ch", padding: "6px 12px" }}>${problem}</p>`}</div>`}
  </div>`;
}
