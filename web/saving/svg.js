/**
 * Draw a part of the page, as the browser has laid it out, as an SVG that stands alone: text as
 * text, drawings as drawings, canvases as images. The SVG is built node by node, so that no token
 * can become markup.
 */

const SVG = "http://www.w3.org/2000/svg";
/** Characters that XML does not allow, and halves of surrogate pairs. */
const NOT_XML = new RegExp(
  [
    /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/,
    /[\ud800-\udbff](?![\udc00-\udfff])/,
    /(?<![\ud800-\udbff])[\udc00-\udfff]/,
  ]
    .map((part) => part.source)
    .join("|"),
  "g",
);
const TRANSPARENT = /^(transparent|none|rgba\(.*, 0\))$/;
/** The properties of a drawing that the page's style sheets set. */
const STYLED = [
  "fill fill-opacity stroke stroke-width stroke-opacity stroke-dasharray stroke-linecap",
  "opacity font-family font-size font-weight text-anchor paint-order shape-rendering",
  "vector-effect",
].flatMap((names) => names.split(" "));

/**
 * @typedef {{left: number, top: number, right: number, bottom: number}} Edges  in pixels of the
 *   window
 */
/**
 * @typedef {{svg: Element, left: number, top: number, ruler: CanvasRenderingContext2D}} Pen  the
 *   drawing, its corner on the page, and a context that measures fonts
 */

/**
 * Return an element of the page as the text of an SVG file, and its size in pixels.
 * @param {HTMLElement} element
 * @param {string} background
 * @param {string} [caption]  a line below the drawing
 * @param {string} [ink]  its colour
 */
export function toSvg(element, background, caption, ink) {
  const edge = element.getBoundingClientRect();
  const width = Math.ceil(edge.width);
  const inner = Math.ceil(edge.height);
  const height = inner + (caption ? 34 : 0);
  const svg = createSvg("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  svg.append(createSvg("rect", { width, height, fill: background }));
  const ruler = /** @type {CanvasRenderingContext2D} */ (
    document.createElement("canvas").getContext("2d")
  );
  const pen = { svg, left: edge.left, top: edge.top, ruler };
  element.childNodes.forEach((child) => drawNode(pen, child, edge));
  if (caption) {
    const written = createSvg("text", {
      x: 16,
      y: inner + 14,
      fill: ink,
      "font-size": 13,
      "font-family": "sans-serif",
    });
    written.textContent = caption.replace(NOT_XML, "\ufffd");
    svg.append(written);
  }
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}

/**
 * Return an element of SVG with attributes; those that are undefined are left out.
 * @param {string} name
 * @param {Record<string, string | number | undefined>} attributes
 */
function createSvg(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes))
    if (value !== undefined && key !== "xmlns") element.setAttribute(key, String(value));
  return element;
}

/** What a reader operates, and a picture does not need. */
const CONTROLS =
  ".mapbar, .switches, .fold, .slide, .settings, .button, .segments, label, select, summary, " +
  "input[type=range], details:not([open]), [data-no-picture]";

/**
 * Controls are no part of a picture, except those that are its labels: words, steps and cells.
 * @param {Element} node
 */
const isControl = (node) => node.matches(CONTROLS) && !node.closest(".ledger, .words");

/**
 * Draw a node and its children, without what `clip` hides.
 * @param {Pen} pen
 * @param {Node} node
 * @param {Edges} clip
 * @returns {void}
 */
function drawNode(pen, node, clip) {
  if (node instanceof Text) return drawText(pen, node, clip);
  if (!(node instanceof Element)) return undefined;
  const style = getComputedStyle(node);
  if (isControl(node)) return undefined;
  if (style.display === "none" || style.visibility === "hidden" || style.clipPath !== "none")
    return undefined;
  if (style.transform !== "none" && node instanceof HTMLElement)
    return drawTurned(pen, node, style);
  const edge = node.getBoundingClientRect();
  if (edge.width && edge.height) drawBox(pen, node, style, edge, clip);
  if (node instanceof SVGElement) return drawSvg(pen, node, edge);
  if (node instanceof HTMLCanvasElement) return drawCanvas(pen, node, edge);
  if (node instanceof HTMLInputElement || node instanceof HTMLSelectElement)
    return drawControl(pen, node, style, edge);
  if (node.localName === "mfrac") drawFraction(pen, node, style);
  if (node.localName === "msqrt") drawRoot(pen, node, style, edge);
  const inner = /auto|scroll|hidden|clip/.test(style.overflowX + style.overflowY)
    ? intersection(clip, edge)
    : clip;
  node.childNodes.forEach((child) => drawNode(pen, child, inner));
  return undefined;
}

/**
 * Draw an element that is turned or moved by its style, such as the heading of a column: as it is
 * laid out without that, inside of a group that does the same.
 * @param {Pen} pen
 * @param {HTMLElement} node
 * @param {CSSStyleDeclaration} style
 */
function drawTurned(pen, node, style) {
  const { transform } = style;
  const [originX, originY] = style.transformOrigin.split(" ").map(parseFloat);
  const own = node.style.transform;
  node.style.transform = "none";
  try {
    const edge = node.getBoundingClientRect();
    const x = round(edge.left - pen.left + originX);
    const y = round(edge.top - pen.top + originY);
    const group = createSvg("g", {
      transform: `translate(${x} ${y}) ${transform} translate(${-x} ${-y})`,
    });
    pen.svg.append(group);
    // What its surroundings clip is not known in its own directions.
    drawNode({ ...pen, svg: group }, node, EVERYTHING);
  } finally {
    node.style.transform = own;
  }
}

/** @type {Edges} */
const EVERYTHING = { left: -1e6, top: -1e6, right: 1e6, bottom: 1e6 };

/**
 * Return what two rectangles share.
 * @param {Edges} a
 * @param {Edges} b
 */
const intersection = (a, b) => ({
  left: Math.max(a.left, b.left),
  top: Math.max(a.top, b.top),
  right: Math.min(a.right, b.right),
  bottom: Math.min(a.bottom, b.bottom),
});

/**
 * Draw an element's background, its border, and the pattern of masked cells.
 * @param {Pen} pen
 * @param {Element} node
 * @param {CSSStyleDeclaration} style
 * @param {Edges} edge
 * @param {Edges} clip
 */
function drawBox(pen, node, style, edge, clip) {
  const seen = intersection(clip, edge);
  if (seen.right <= seen.left || seen.bottom <= seen.top) return;
  const x = seen.left - pen.left;
  const y = seen.top - pen.top;
  const width = seen.right - seen.left;
  const height = seen.bottom - seen.top;
  const rx = Math.min(parseFloat(style.borderTopLeftRadius) || 0, width / 2, height / 2);
  const framed =
    style.borderTopWidth !== "0px" &&
    style.borderBottomWidth !== "0px" &&
    style.borderLeftWidth !== "0px" &&
    style.borderTopStyle !== "none";
  const border = framed ? 1 : 0;
  const fill = TRANSPARENT.test(style.backgroundColor) ? "none" : style.backgroundColor;
  if (fill !== "none" || framed) {
    pen.svg.append(
      createSvg("rect", {
        x: x + 0.5 * border,
        y: y + 0.5 * border,
        width: width - border,
        height: height - border,
        rx,
        fill,
        stroke: framed ? style.borderTopColor : undefined,
        "stroke-dasharray": style.borderTopStyle === "dashed" ? "4 3" : undefined,
      }),
    );
  }
  if (!framed) {
    /** @type {(size: string, stroke: string, y: number) => void} */
    const line = (size, stroke, y) => {
      if (!parseFloat(size) || TRANSPARENT.test(stroke)) return;
      pen.svg.append(
        createSvg("line", {
          x1: x,
          y1: y,
          x2: x + width,
          y2: y,
          stroke,
          "stroke-width": parseFloat(size),
        }),
      );
    };
    line(style.borderTopWidth, style.borderTopColor, y + 0.5);
    line(style.borderBottomWidth, style.borderBottomColor, y + height - 0.5);
  }
  if (node.classList.contains("hatch")) {
    const lines = [];
    for (let at = -height; at < width; at += 7) {
      const from = Math.max(at, 0);
      const to = Math.min(at + height, width);
      if (to > from)
        lines.push(`M${x + from} ${y + height - (from - at)}L${x + to} ${y + height - (to - at)}`);
    }
    pen.svg.append(
      createSvg("path", {
        d: lines.join(""),
        stroke: getComputedStyle(
          /** @type {Element} */ (node.closest(".telescope")),
        ).getPropertyValue("--line"),
        "stroke-width": 1.2,
        fill: "none",
      }),
    );
  }
}

/**
 * Draw a text line by line, broken as on the page, each line at its own baseline.
 * @param {Pen} pen
 * @param {Text} node
 * @param {Edges} clip
 */
function drawText(pen, node, clip) {
  if (!node.data.trim()) return;
  const style = getComputedStyle(/** @type {Element} */ (node.parentElement));
  const range = document.createRange();
  /** @type {({words: string[]} & Edges)[]} */
  const lines = [];
  for (const { 0: word, index } of node.data.matchAll(/\S+/gu)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    for (const edge of range.getClientRects()) {
      const last = lines.at(-1);
      if (last && Math.abs(last.top - edge.top) < 2 && edge.left >= last.right - 1) {
        last.words.push(word);
        last.right = edge.right;
      } else if (!last || last.words.at(-1) !== word || Math.abs(last.top - edge.top) >= 2) {
        lines.push({
          words: [word],
          left: edge.left,
          right: edge.right,
          top: edge.top,
          bottom: edge.bottom,
        });
      }
    }
  }
  pen.ruler.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const ascent = pen.ruler.measureText("x").fontBoundingBoxAscent;
  for (const line of lines) {
    if (
      line.right <= clip.left ||
      line.left >= clip.right ||
      line.bottom <= clip.top + 2 ||
      line.top >= clip.bottom - 2
    )
      continue;
    const element = createSvg("text", {
      x: round(line.left - pen.left),
      y: round(line.top - pen.top + ascent),
      fill: style.color,
      "font-family": style.fontFamily,
      "font-size": style.fontSize,
      "font-weight": style.fontWeight === "400" ? undefined : style.fontWeight,
      "font-style": style.fontStyle === "normal" ? undefined : style.fontStyle,
    });
    element.textContent = line.words.join(" ").replace(NOT_XML, "\ufffd");
    pen.svg.append(element);
  }
}

/** @param {number} x */
const round = (x) => Math.round(x * 100) / 100;

/**
 * Copy a drawing of the page, with its computed styles as attributes.
 * @param {Pen} pen
 * @param {SVGElement} node
 * @param {DOMRect} edge
 */
function drawSvg(pen, node, edge) {
  const copy = /** @type {SVGElement} */ (node.cloneNode(true));
  const old = [node, ...node.querySelectorAll("*")];
  const fresh = [copy, ...copy.querySelectorAll("*")];
  fresh.forEach((element, at) => {
    const style = getComputedStyle(old[at]);
    for (const name of [...element.getAttributeNames()])
      if (/^(on|class|style|role|tabindex|aria-|data-)/.test(name)) element.removeAttribute(name);
    for (const name of STYLED) {
      const value = style.getPropertyValue(name);
      if (
        value &&
        value !== "normal" &&
        (at === 0 ||
          value !==
            getComputedStyle(/** @type {Element} */ (old[at].parentElement)).getPropertyValue(
              name,
            ) ||
          /^(fill|stroke)/.test(name))
      )
        element.setAttribute(name, value);
    }
    if (element.localName === "text")
      element.textContent = (element.textContent ?? "").replace(NOT_XML, "\ufffd");
  });
  copy.setAttribute("color", getComputedStyle(node).color);
  for (const [name, value] of Object.entries({
    x: edge.left - pen.left,
    y: edge.top - pen.top,
    width: edge.width,
    height: edge.height,
  }))
    copy.setAttribute(name, String(round(value)));
  pen.svg.append(copy);
}

/**
 * Embed a canvas as an image.
 * @param {Pen} pen
 * @param {HTMLCanvasElement} node
 * @param {DOMRect} edge
 */
function drawCanvas(pen, node, edge) {
  if (!node.width || !node.height) return;
  const image = createSvg("image", {
    x: edge.left - pen.left,
    y: edge.top - pen.top,
    width: edge.width,
    height: edge.height,
    preserveAspectRatio: "none",
    "image-rendering": "pixelated",
    href: node.toDataURL("image/png"),
  });
  pen.svg.append(image);
}

/**
 * Draw what was typed or chosen as text inside the box of its field.
 * @param {Pen} pen
 * @param {HTMLInputElement | HTMLSelectElement} node
 * @param {CSSStyleDeclaration} style
 * @param {DOMRect} edge
 */
function drawControl(pen, node, style, edge) {
  const text =
    node instanceof HTMLSelectElement
      ? node.selectedOptions[0]?.textContent?.trim()
      : /^(text|)$/.test(node.type)
        ? node.value
        : "";
  if (!text) return;
  const element = createSvg("text", {
    x: round(edge.left - pen.left + parseFloat(style.paddingLeft) + 2),
    y: round(edge.top - pen.top + edge.height / 2 + parseFloat(style.fontSize) * 0.35),
    fill: style.color,
    "font-family": style.fontFamily,
    "font-size": style.fontSize,
  });
  element.textContent = text.replace(NOT_XML, "\ufffd");
  pen.svg.append(element);
}

/**
 * Draw the bar of a MathML fraction.
 * @param {Pen} pen
 * @param {Element} node
 * @param {CSSStyleDeclaration} style
 */
function drawFraction(pen, node, style) {
  const [above, below] = [...node.children].map((child) => child.getBoundingClientRect());
  const edge = node.getBoundingClientRect();
  const y = (above.bottom + below.top) / 2 - pen.top;
  pen.svg.append(
    createSvg("line", {
      x1: edge.left - pen.left,
      x2: edge.right - pen.left,
      y1: y,
      y2: y,
      stroke: style.color,
      "stroke-width": 1.2,
    }),
  );
}

/**
 * Draw the sign of a MathML square root.
 * @param {Pen} pen
 * @param {Element} node
 * @param {CSSStyleDeclaration} style
 * @param {DOMRect} edge
 */
function drawRoot(pen, node, style, edge) {
  const inside = /** @type {Element} */ (node.firstElementChild).getBoundingClientRect();
  const left = edge.left - pen.left;
  const top = edge.top - pen.top + 1.5;
  const right = edge.right - pen.left;
  const bottom = edge.bottom - pen.top;
  const start = inside.left - pen.left - 2;
  const hook = `M${left + 1} ${(top + bottom) / 2 + 2}l${(start - left) / 3} -2`;
  const stroke = `L${(left + start) / 2 + 1} ${bottom - 1}L${start} ${top}H${right}`;
  pen.svg.append(
    createSvg("path", {
      d: hook + stroke,
      fill: "none",
      stroke: style.color,
      "stroke-width": 1.2,
    }),
  );
}
