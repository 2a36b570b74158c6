/** Preact, and htm's templates for it: html`<p>…</p>` returns a node. */
import { h, Fragment, render } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";

/** @type {(strings: TemplateStringsArray, ...values: TemplateValue[]) => import("preact").VNode} */
export const html = /** @type {any} */ (htm.bind(h));
export { Fragment, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };
