/** The map, on a canvas: tiles, what is masked, tracks, labels, and numbers once a cell has room for one. */
import { ink } from "../parts/colour.js";
import { count, short } from "../parts/numbers.js";
import { clipped } from "../parts/text.js";
import { coloured, placed } from "./half.js";
import { limits, shift } from "./look.js";
import { level, pixels, seen, toCell, toPixel } from "./view.js";

export const NAMED = 12; // from so many pixels on, a cell has its token beside it
export const WRITTEN = 44; // and its number in it
const TRACK = 26;

/** Where the matrix stands on the canvas: beside its tracks and labels. */
export function boxOf(width, height, named) {
  const left = (named ? Math.min(104, width * 0.24) : 62) + TRACK;
  const top = (named ? 78 : 26) + TRACK;
  return { left, top, width: Math.max(60, width - left - 10), height: Math.max(60, height - top - 10) };
}

export const tileKey = (query, { z, x, y }) => `${query.l}/${query.h}/${query.agg}/${z}/${x}/${y}`;
export const trackKey = (query, kind, z, x) => `${query.l}/${query.h}/${kind}/${z}/${x}`;

/** @returns {{exact: number, sampled: number, samples: number}} which of the tiles in sight are what */
export function draw(context, scene) {
  const { width, height, dense, colours } = scene;
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.clearRect(0, 0, width, height);
  const quality = drawTiles(context, scene);
  if (scene.cursor) drawCursor(context, scene);
  drawTracks(context, scene);
  drawLabels(context, scene);
  const { left, top, right, bottom } = edges(scene);
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, right - left + 1, bottom - top + 1);
  drawOverview(context, scene);
  return quality;
}

/** What of the canvas the matrix takes: all of its box, or less where it is smaller. Labels and tracks stand close to it. */
function edges({ view, info, box }) {
  const [left, top] = toPixel(view, info, box, 0, 0);
  const [right, bottom] = toPixel(view, info, box, info.n_k, info.n_q);
  return {
    left: Math.max(box.left, left), top: Math.max(box.top, top),
    right: Math.min(box.left + box.width, right), bottom: Math.min(box.top + box.height, bottom),
  };
}

function clipTo(context, { left, top, width, height }, body) {
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  body();
  context.restore();
}

/** The picture of a tile, coloured as one looks now. */
function picture(tile, at, scene) {
  const { info, look, state } = scene;
  const bin = 2 ** (info.max_zoom - at.z);
  const mine = look.of(state, bin, info);
  if (tile.name !== mine.name) {
    const ragged = info.n_k % bin;
    const column = Math.floor(info.n_k / bin) - at.x * info.tile;
    const last = ragged && column >= 0 && column < info.tile && shift(state.agg, 2, info) !== shift(state.agg, 1, info)
      ? { column, colours: look.of(state, bin, info, ragged).colours } : null;
    tile.picture = coloured(tile.values, info.tile, mine.colours, last);
    tile.name = mine.name;
  }
  return tile.picture;
}

function drawTiles(context, scene) {
  const { view, info, box, dense, tiles, query, hatch } = scene;
  const { z } = level(view, info, dense);
  const quality = { exact: 0, sampled: 0, samples: Infinity, missing: 0 };
  clipTo(context, box, () => {
    for (const at of seen(view, info, box, z)) {
      const [own, up] = nearest(tiles, query, at);
      const cells = info.tile * 2 ** (info.max_zoom - z);
      const whole = (pair) => pair.map((place) => Math.round(place * dense) / dense); // no seams: tiles meet at whole pixels
      const [left, top] = whole(toPixel(view, info, box, at.x * cells, at.y * cells));
      const [right, bottom] = whole(toPixel(view, info, box, Math.min(info.n_k, (at.x + 1) * cells), Math.min(info.n_q, (at.y + 1) * cells)));
      if (!own) {
        quality.missing += 1;
        context.fillStyle = scene.colours.faint;
        context.fillRect(left, top, right - left, bottom - top);
        continue;
      }
      if (up) quality.missing += 1;
      context.fillStyle = hatch;
      context.fillRect(left, top, right - left, bottom - top);
      const part = info.tile / 2 ** up;
      const from = [(at.x % 2 ** up) * part, (at.y % 2 ** up) * part];
      const [wide, high] = whole(toPixel(view, info, box, (at.x + 1) * cells, (at.y + 1) * cells));
      context.imageSmoothingEnabled = (wide - left) * dense < info.tile;
      context.drawImage(picture(own, { z: z - up, x: at.x >> up, y: at.y >> up }, scene), ...from, part, part, left, top, wide - left, high - top);
      if (own.exact) quality.exact += 1;
      else {
        quality.sampled += 1;
        quality.samples = Math.min(quality.samples, own.samples);
        drawSampled(context, scene, left, top, right, bottom);
      }
    }
    if (pixels(view, info) >= NAMED) drawGrid(context, scene);
    if (pixels(view, info) >= WRITTEN) drawNumbers(context, scene);
  });
  return quality;
}

/** The tile itself, or the nearest one above it that is here: it is shown, enlarged, until the right one comes. */
function nearest(tiles, query, { z, x, y }) {
  for (let up = 0; up <= z; up += 1) {
    const tile = tiles.get(tileKey(query, { z: z - up, x: x >> up, y: y >> up }));
    if (tile) return [tile, up];
  }
  return [null, 0];
}

/** A sample is never taken for the whole: a dashed frame, and the word. */
function drawSampled(context, { colours }, left, top, right, bottom) {
  context.save();
  context.strokeStyle = colours.warn;
  context.lineWidth = 1.5;
  context.setLineDash([5, 4]);
  context.strokeRect(left + 1.5, top + 1.5, right - left - 3, bottom - top - 3);
  if (right - left > 90 && bottom - top > 30) {
    context.font = `11px ${colours.sans}`;
    const wide = context.measureText("sampled").width + 10;
    context.fillStyle = colours.raised;
    context.fillRect(left + 5, top + 5, wide, 17);
    context.fillStyle = colours.warn;
    context.fillText("sampled", left + 10, top + 17);
  }
  context.restore();
}

/** The cells in sight. */
export function cellsIn({ view, info, box }) {
  const [x0, y0] = toCell(view, info, box, box.left, box.top);
  const [x1, y1] = toCell(view, info, box, box.left + box.width, box.top + box.height);
  return {
    j0: Math.max(0, Math.floor(x0)), j1: Math.min(info.n_k, Math.ceil(x1)),
    i0: Math.max(0, Math.floor(y0)), i1: Math.min(info.n_q, Math.ceil(y1)),
  };
}

function drawGrid(context, scene) {
  const { view, info, box, colours } = scene;
  const { i0, i1, j0, j1 } = cellsIn(scene);
  context.beginPath();
  for (let j = j0; j <= j1; j += 1) {
    const [x, y] = toPixel(view, info, box, j, i0);
    context.moveTo(x, y);
    context.lineTo(x, toPixel(view, info, box, j, i1)[1]);
  }
  for (let i = i0; i <= i1; i += 1) {
    const [x, y] = toPixel(view, info, box, j0, i);
    context.moveTo(x, y);
    context.lineTo(toPixel(view, info, box, j1, i)[0], y);
  }
  context.strokeStyle = colours.paper;
  context.globalAlpha = 0.55;
  context.lineWidth = 1;
  context.stroke();
  context.globalAlpha = 1;
}

/** Numbers come from the cells themselves, never from the picture below them. */
function drawNumbers(context, scene) {
  const { view, info, box, state, weight, colours } = scene;
  const { i0, i1, j0, j1 } = cellsIn(scene);
  const [low, high] = limits(state, 1, info);
  const place = placed({ low, high, scale: state.scale });
  context.font = `${Math.min(12.5, pixels(view, info) / 4.6)}px ${colours.figures}`;
  const fits = (text) => context.measureText(text).width <= pixels(view, info) - 4;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let i = i0; i < i1; i += 1) {
    for (let j = j0; j < j1; j += 1) {
      const p = weight(i, j);
      if (p === null) continue;
      const [x, y] = toPixel(view, info, box, j + 0.5, i + 0.5);
      context.fillStyle = ink(scene.colourAt(place(Math.log2(p) + shift(state.agg, 1, info))));
      const text = [3, 2, 1].map((digits) => short(p, digits)).find(fits) ?? short(p, 1);
      context.fillText(text, x, y);
    }
  }
  context.textAlign = "start";
  context.textBaseline = "alphabetic";
}

function drawCursor(context, { view, info, box, cursor, colours }) {
  const each = Math.max(pixels(view, info), 7);
  const [x, y] = toPixel(view, info, box, cursor.j + 0.5, cursor.i + 0.5);
  clipTo(context, box, () => {
    for (const [width, colour] of [[3.5, colours.paper], [1.5, colours.ink]]) {
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.strokeRect(x - each / 2, y - each / 2, each, each);
    }
  });
}

/** Beside the rows how spread each query looks; above the columns how much each key is given. */
function drawTracks(context, scene) {
  const { view, info, box, dense, tiles, query, colours } = scene;
  const { z, bin } = level(view, info, dense);
  const span = info.tile * bin;
  const edge = edges(scene);
  for (const [kind, n, along] of [["received", info.n_k, 0], ["entropy", info.n_q, 1]]) {
    const area = along === 0
      ? { left: box.left, top: edge.top - TRACK - 2, width: box.width, height: TRACK }
      : { left: edge.left - TRACK - 2, top: box.top, width: TRACK, height: box.height };
    const from = toCell(view, info, box, box.left, box.top)[along];
    const to = toCell(view, info, box, box.left + box.width, box.top + box.height)[along];
    const found = [];
    for (let at = Math.max(0, Math.floor(from / span)); at <= Math.min(Math.ceil(n / span) - 1, Math.floor(to / span)); at += 1) {
      const track = tiles.get(trackKey(query, kind, z, at));
      track?.values.forEach((value, place) => {
        const cell = at * span + place * bin;
        if (!Number.isNaN(value) && cell < n && cell + bin > from && cell < to) found.push([cell, value, track.exact]);
      });
    }
    const most = Math.max(...found.map(([, value]) => value), 1e-30);
    clipTo(context, area, () => {
      for (const [cell, value, exact] of found) {
        const [a, b] = [cell, Math.min(n, cell + bin)].map((c) => Math.round(toPixel(view, info, box, c, c)[along] * dense) / dense);
        const long = Math.max(1, (value / most) * (TRACK - 3));
        context.fillStyle = exact ? colours.bar : colours.warn;
        const wide = Math.max(b - a - (b - a > 6 ? 1 : 0), 1 / dense);
        if (along === 0) context.fillRect(a, area.top + TRACK - long, wide, long);
        else context.fillRect(area.left + TRACK - long, a, long, wide);
      }
    });
  }
}

/** Tokens where there is room for them, otherwise places, at round numbers. */
function drawLabels(context, scene) {
  const { view, info, box, colours, token, cursor } = scene;
  const each = pixels(view, info);
  const { left, top } = edges(scene);
  const { i0, i1, j0, j1 } = cellsIn(scene);
  context.fillStyle = colours.ink;
  const fits = Math.max(3, Math.floor((box.left - TRACK - 12) / 6.6));
  if (each >= NAMED) {
    context.font = `${each >= 15 ? 13 : 11}px ${colours.serif}`;
    context.textBaseline = "middle";
    for (let i = i0; i < i1; i += 1) {
      const y = toPixel(view, info, box, 0, i + 0.5)[1];
      if (y < box.top + 4 || y > box.top + box.height - 4) continue;
      context.textAlign = "right";
      context.fillStyle = i === cursor?.i ? colours.query : colours.ink;
      context.fillText(clipped(token("q", i), fits), left - TRACK - 8, y);
    }
    for (let j = j0; j < j1; j += 1) {
      const x = toPixel(view, info, box, j + 0.5, 0)[0];
      if (x < box.left + 4 || x > box.left + box.width - 4) continue;
      context.save();
      context.translate(x, top - TRACK - 8);
      context.rotate(-Math.PI / 3);
      context.textAlign = "left";
      context.fillStyle = j === cursor?.j ? colours.key : colours.ink;
      context.fillText(clipped(token("k", j), 11), 0, 0);
      context.restore();
    }
  } else {
    context.font = `11px ${colours.figures}`;
    const step = (room) => {
      const raw = room / each;
      const ten = 10 ** Math.floor(Math.log10(raw));
      return Math.max(1, [1, 2, 5, 10].find((f) => f * ten >= raw) * ten);
    };
    context.fillStyle = colours.soft;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const down = step(46);
    for (let i = Math.ceil(i0 / down) * down; i < i1; i += down) {
      const y = toPixel(view, info, box, 0, i + 0.5)[1];
      if (y >= box.top && y < box.top + box.height - 5) context.fillText(count(i), left - TRACK - 8, y);
    }
    context.textAlign = "center";
    context.textBaseline = "bottom";
    const across = step(box.width < 320 ? 58 : 92);
    for (let j = Math.ceil(j0 / across) * across; j < j1; j += across) {
      const x = toPixel(view, info, box, j + 0.5, 0)[0];
      if (x >= box.left && x < box.left + box.width - 26) context.fillText(count(j), x, top - TRACK - 6);
    }
  }
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
}

/** The whole in a corner, once one sees less than that: where one is. */
function drawOverview(context, scene) {
  const { view, info, box, tiles, query, colours, hatch } = scene;
  const map = overview(scene);
  if (!map) return;
  context.fillStyle = colours.raised;
  context.fillRect(map.left - 3, map.top - 3, map.width + 6, map.height + 6);
  context.fillStyle = hatch;
  context.fillRect(map.left, map.top, map.width, map.height);
  const tile = tiles.get(tileKey(query, { z: 0, x: 0, y: 0 }));
  const bin = 2 ** info.max_zoom;
  context.imageSmoothingEnabled = true;
  if (tile) context.drawImage(picture(tile, { z: 0, x: 0, y: 0 }, scene), 0, 0, info.n_k / bin, info.n_q / bin, map.left, map.top, map.width, map.height);
  const [x0, y0] = toCell(view, info, box, box.left, box.top);
  const [x1, y1] = toCell(view, info, box, box.left + box.width, box.top + box.height);
  const across = (x) => map.left + (Math.max(0, Math.min(info.n_k, x)) / info.n_k) * map.width;
  const down = (y) => map.top + (Math.max(0, Math.min(info.n_q, y)) / info.n_q) * map.height;
  const frame = [across(x0), down(y0), Math.max(5, across(x1) - across(x0)), Math.max(5, down(y1) - down(y0))];
  for (const [wide, colour] of [[3.5, "#000"], [1.5, "#fff"]]) {
    context.lineWidth = wide;
    context.strokeStyle = colour;
    context.strokeRect(...frame);
  }
  context.lineWidth = 1;
  context.strokeStyle = colours.line;
  context.strokeRect(map.left - 3.5, map.top - 3.5, map.width + 7, map.height + 7);
}

/** Where the overview stands; nowhere while all is in sight. */
export function overview({ view, info, box }) {
  const { i0, i1, j0, j1 } = cellsIn({ view, info, box });
  if ((i1 - i0) * (j1 - j0) > 0.6 * info.n_q * info.n_k) return null;
  const most = Math.min(116, box.width / 3);
  const [width, height] = [Math.max(18, most * Math.min(1, info.n_k / info.n_q)), Math.max(18, most * Math.min(1, info.n_q / info.n_k))];
  return { left: box.left + box.width - width - 12, top: box.top + box.height - height - 12, width, height };
}
