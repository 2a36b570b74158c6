/** The mark of each kind of head: a shape and a colour, so that neither alone has to tell kinds apart. */

/**
 * Colours are those of Okabe and Ito (2008), which people with any colour vision tell apart; shapes are paths between
 * -1 and 1.
 * @type {Record<string, {path: string, light: string, dark: string}>}
 */
export const KIND_MARKS = {
  itself: { path: "M-.85-.85H.85V.85H-.85Z", light: "#0072b2", dark: "#4aa3df" },
  previous: { path: "M-1 0 .7-.95V.95Z", light: "#d55e00", dark: "#f0803c" },
  first: { path: "M0-1 .95.75H-.95Z", light: "#009e73", dark: "#2fc49a" },
  sink: { path: "M0 1 .95-.75H-.95Z", light: "#b8860b", dark: "#e6b93c" },
  same: { path: "M0-1.1 1.1 0 0 1.1-1.1 0Z", light: "#cc79a7", dark: "#e39cc3" },
  induction: {
    path: "M0-1.1.3-.35 1.1-.3.5.2.7 1 0 .55-.7 1-.5.2-1.1-.3-.3-.35Z",
    light: "#7a2a8c",
    dark: "#c78be0",
  },
  punctuation: {
    path: "M-.32-1H.32V-.32H1V.32H.32V1H-.32V.32H-1V-.32H-.32Z",
    light: "#2a8fc4",
    dark: "#7fccf5",
  },
  far: {
    path: "M-1-.6-.6-1 0-.4.6-1 1-.6.4 0 1 .6.6 1 0 .4-.6 1-1 .6-.4 0Z",
    light: "#3d3a34",
    dark: "#e8e4da",
  },
  mixed: { path: "M-.7 0A.7.7 0 1 1 .7 0 .7.7 0 1 1-.7 0Z", light: "#8a857a", dark: "#8f8b82" },
};

/** @param {{kind: string}} props */
export function Mark({ kind }) {
  const { path, light, dark } = KIND_MARKS[kind] ?? KIND_MARKS.mixed;
  return (
    <svg class="kind-mark" viewBox="-1.2 -1.2 2.4 2.4" width="14" height="14" aria-hidden="true">
      <path d={path} style={{ fill: `light-dark(${light}, ${dark})` }} />
    </svg>
  );
}
