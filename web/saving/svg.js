/**
 * A view as a drawing: what the browser has laid out, once more as SVG that stands alone. Text stays text, drawings stay drawings,
 * pictures are put in. It is made node by node, so no token can become markup.
 */

const SVG = "http://www.w3.org/2000/svg";
const NOT_XML = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const CLEAR = /^(transparent|none|rgba\(.*, 0\))$/;
const STYLED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "paint-order", "shape-rendering", "vector-effect"];

/** @returns {{text: string, width: number, height: number}} */
export function drawn(element, background) {
  const edge = element.getBoundingClientRect();
  const [width, height] = [Math.ceil(edge.width), Math.ceil(edge.height)];
  const svg = made("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  svg.append(made("rect", { width, height, fill: background }));
  const pen = { svg, left: edge.left, top: edge.top, ruler: document.createElement("canvas").getContext("2d") };
  element.childNodes.forEach((child) => put(pen, child, edge));
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}

function made(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined && key !== "xmlns") element.setAttribute(key, String(value));
  return element;
}

function put(pen, node, clip) {
  if (node.nodeType === Node.TEXT_NODE) return text(pen, node, clip);
  if (node.nodeType !== Node.ELEMENT_NODE) return undefined;
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden" || style.clipPath !== "none") return undefined;
  const edge = node.getBoundingClientRect();
  if (edge.width && edge.height) box(pen, node, style, edge, clip);
  if (node.localName === "svg") return nested(pen, node, edge);
  if (node.localName === "canvas") return picture(pen, node, edge);
  if (node.localName === "input" || node.localName === "select") return control(pen, node, style, edge);
  if (node.localName === "mfrac") fraction(pen, node, style);
  if (node.localName === "msqrt") root(pen, node, style, edge);
  const inner = /auto|scroll|hidden|clip/.test(style.overflowX + style.overflowY) ? both(clip, edge) : clip;
  node.childNodes.forEach((child) => put(pen, child, inner));
  return undefined;
}

const both = (a, b) => ({ left: Math.max(a.left, b.left), top: Math.max(a.top, b.top), right: Math.min(a.right, b.right), bottom: Math.min(a.bottom, b.bottom) });

function box(pen, node, style, edge, clip) {
  const seen = both(clip, edge);
  if (seen.right <= seen.left || seen.bottom <= seen.top) return;
  const [x, y, width, height] = [seen.left - pen.left, seen.top - pen.top, seen.right - seen.left, seen.bottom - seen.top];
  const rx = Math.min(parseFloat(style.borderTopLeftRadius) || 0, width / 2, height / 2);
  const whole = style.borderTopWidth !== "0px" && style.borderBottomWidth !== "0px" && style.borderLeftWidth !== "0px" && style.borderTopStyle !== "none";
  const fill = CLEAR.test(style.backgroundColor) ? "none" : style.backgroundColor;
  if (fill !== "none" || whole) {
    pen.svg.append(made("rect", { x: x + 0.5 * whole, y: y + 0.5 * whole, width: width - whole, height: height - whole, rx, fill, stroke: whole ? style.borderTopColor : undefined, "stroke-dasharray": style.borderTopStyle === "dashed" ? "4 3" : undefined }));
  }
  if (!whole) {
    const line = (size, colour, x1, y1, x2, y2) => parseFloat(size) && !CLEAR.test(colour) && pen.svg.append(made("line", { x1, y1, x2, y2, stroke: colour, "stroke-width": parseFloat(size) }));
    line(style.borderTopWidth, style.borderTopColor, x, y + 0.5, x + width, y + 0.5);
    line(style.borderBottomWidth, style.borderBottomColor, x, y + height - 0.5, x + width, y + height - 0.5);
  }
  if (node.classList.contains("hatch")) {
    const lines = [];
    for (let at = -height; at < width; at += 7) {
      const [from, to] = [Math.max(at, 0), Math.min(at + height, width)];
      if (to > from) lines.push(`M${x + from} ${y + height - (from - at)}L${x + to} ${y + height - (to - at)}`);
    }
    pen.svg.append(made("path", { d: lines.join(""), stroke: getComputedStyle(node.closest(".telescope")).getPropertyValue("--line"), "stroke-width": 1.2, fill: "none" }));
  }
}

/** Text line by line, as it was broken, each at its own baseline. */
function text(pen, node, clip) {
  const said = node.data;
  if (!said.trim()) return;
  const style = getComputedStyle(node.parentElement);
  const range = document.createRange();
  const lines = [];
  for (const { 0: word, index } of said.matchAll(/\S+/gu)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    for (const edge of range.getClientRects()) {
      const last = lines.at(-1);
      if (last && Math.abs(last.top - edge.top) < 2 && edge.left >= last.right - 1) {
        last.words.push(word);
        last.right = edge.right;
      } else if (!last || last.words.at(-1) !== word || Math.abs(last.top - edge.top) >= 2) {
        lines.push({ words: [word], left: edge.left, right: edge.right, top: edge.top, bottom: edge.bottom });
      }
    }
  }
  pen.ruler.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const up = pen.ruler.measureText("x").fontBoundingBoxAscent;
  for (const line of lines) {
    if (line.right <= clip.left || line.left >= clip.right || line.bottom <= clip.top + 2 || line.top >= clip.bottom - 2) continue;
    const element = made("text", {
      x: round(line.left - pen.left), y: round(line.top - pen.top + up), fill: style.color, "font-family": style.fontFamily, "font-size": style.fontSize,
      "font-weight": style.fontWeight === "400" ? undefined : style.fontWeight, "font-style": style.fontStyle === "normal" ? undefined : style.fontStyle,
    });
    element.textContent = line.words.join(" ").replace(NOT_XML, "\ufffd");
    pen.svg.append(element);
  }
}

const round = (x) => Math.round(x * 100) / 100;

/** A drawing within: a copy that has its styles written on it. */
function nested(pen, node, edge) {
  const copy = node.cloneNode(true);
  const [old, fresh] = [[node, ...node.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  fresh.forEach((element, at) => {
    const style = getComputedStyle(old[at]);
    for (const name of [...element.getAttributeNames()]) if (/^(on|class|style|role|tabindex|aria-|data-)/.test(name)) element.removeAttribute(name);
    for (const name of STYLED) {
      const value = style.getPropertyValue(name);
      if (value && value !== "normal" && (at === 0 || value !== getComputedStyle(old[at].parentElement).getPropertyValue(name) || /^(fill|stroke)/.test(name))) element.setAttribute(name, value);
    }
    if (element.localName === "text") element.textContent = element.textContent.replace(NOT_XML, "\ufffd");
  });
  copy.setAttribute("color", getComputedStyle(node).color);
  for (const [name, value] of Object.entries({ x: edge.left - pen.left, y: edge.top - pen.top, width: edge.width, height: edge.height })) copy.setAttribute(name, round(value));
  pen.svg.append(copy);
}

function picture(pen, node, edge) {
  if (!node.width || !node.height) return;
  const image = made("image", { x: edge.left - pen.left, y: edge.top - pen.top, width: edge.width, height: edge.height, preserveAspectRatio: "none", "image-rendering": "pixelated", href: node.toDataURL("image/png") });
  pen.svg.append(image);
}

/** What was typed or chosen, as text in its box. */
function control(pen, node, style, edge) {
  const said = node.localName === "select" ? node.selectedOptions[0]?.textContent.trim() : /^(text|)$/.test(node.type) ? node.value : "";
  if (!said) return;
  const element = made("text", { x: round(edge.left - pen.left + parseFloat(style.paddingLeft) + 2), y: round(edge.top - pen.top + edge.height / 2 + parseFloat(style.fontSize) * 0.35), fill: style.color, "font-family": style.fontFamily, "font-size": style.fontSize });
  element.textContent = said.replace(NOT_XML, "\ufffd");
  pen.svg.append(element);
}

function fraction(pen, node, style) {
  const [above, below] = [...node.children].map((child) => child.getBoundingClientRect());
  const edge = node.getBoundingClientRect();
  const y = (above.bottom + below.top) / 2 - pen.top;
  pen.svg.append(made("line", { x1: edge.left - pen.left, x2: edge.right - pen.left, y1: y, y2: y, stroke: style.color, "stroke-width": 1.2 }));
}

function root(pen, node, style, edge) {
  const inside = node.firstElementChild.getBoundingClientRect();
  const [left, top, right, bottom] = [edge.left - pen.left, edge.top - pen.top + 1.5, edge.right - pen.left, edge.bottom - pen.top];
  const start = inside.left - pen.left - 2;
  pen.svg.append(made("path", { d: `M${left + 1} ${(top + bottom) / 2 + 2}l${(start - left) / 3} -2L${(left + start) / 2 + 1} ${bottom - 1}L${start} ${top}H${right}`, fill: "none", stroke: style.color, "stroke-width": 1.2 }));
}
