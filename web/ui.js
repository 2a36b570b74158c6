/** Preact and htm, under the names that all screens use. */
import { h, Fragment, render } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";

export const html = htm.bind(h);
export { Fragment, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };
