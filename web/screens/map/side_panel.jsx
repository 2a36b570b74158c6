/**
 * What is written beside the map: how exact it is, the chosen cell, the colour scale, and a query's
 * largest weights.
 */
import { useEffect, useRef } from "preact/hooks";
import { useAnswer } from "../../answers.js";
import { Answered } from "../../parts/answered.jsx";
import { css, paletteColour } from "../../parts/colour.js";
import { count, full, percent, short, traceWeights } from "../../parts/numbers.js";
import { visible } from "../../parts/text.js";
import { ZERO, chosenPalette, colourLimits, context2d } from "./colouring.js";

/**
 * How exact the picture is: exact, sampled, or still coarser than the screen.
 * @param {{quality: Quality, bin: number, top?: boolean}} props
 */
export function QualityNote({ quality, bin, top = false }) {
  const { exact, sampled, samples, missing, waiting = 0 } = quality;
  const pixel =
    bin === 1 ? "a pixel is one weight" : `a pixel is ${count(bin)} × ${count(bin)} weights`;
  const loading = waiting > 0 ? `, ${waiting} loading` : "";
  const below = (
    <span class="soft" style={{ display: "block", marginTop: "7px", fontSize: "13px" }}>
      {pixel}
    </span>
  );
  if (top && !missing && sampled)
    return (
      <>
        <span class="quality sampled" role="status" data-exact="0">
          ◌ the largest weights of each query: this recording kept summaries{loading}
        </span>
        {below}
      </>
    );
  if (!exact && !sampled)
    return (
      <>
        <span class="quality" role="status">
          ○ computing{loading}
        </span>
        {below}
      </>
    );
  if (missing)
    return (
      <>
        <span class="quality sampled" role="status" data-exact="0" data-missing={missing}>
          ◌ coarse, refining{loading}
        </span>
        {below}
      </>
    );
  if (!sampled)
    return (
      <>
        <span class="quality" role="status" data-exact="1">
          ● exact{loading}
        </span>
        {below}
      </>
    );
  return (
    <>
      <span class="quality sampled" role="status" data-exact="0">
        ◌ sampled: {sampled} of {sampled + exact} tiles, at least {count(samples)}{" "}
        {samples === 1 ? "query" : "queries"} per pixel{loading}
      </span>
      {below}
    </>
  );
}

/**
 * The largest weights of one query, as a table.
 * @param {{run: Run, answers: import("../../answers.js").Answers, jump: (i: number, j: number) =>
 *   void, l: number, h: number, i: number}} props
 */
export function LargestWeights({ run, answers, jump, l, h, i }) {
  const trace = useAnswer(
    answers,
    `runs/${run.run}/${run.attentions[l].has?.trace === false ? "top" : "trace"}`,
    {
      l,
      h,
      i,
    },
  );
  return (
    <Answered answer={trace}>
      {(/** @type {Trace} */ found) => {
        const weights = traceWeights(found);
        const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 20);
        return (
          <table class="pairs">
            <thead>
              <tr>
                <th scope="col">key</th>
                <th scope="col">position</th>
                <th scope="col">weight</th>
              </tr>
            </thead>
            <tbody>
              {order.map((at) => (
                <tr>
                  <td>
                    <button type="button" onClick={() => jump(i, found.keys[at])}>
                      {visible(found.tokens[at])}
                    </button>
                  </td>
                  <td>{count(found.keys[at])}</td>
                  <td title={full(weights[at])}>{percent(weights[at])}</td>
                </tr>
              ))}
            </tbody>
          </table>
        );
      }}
    </Answered>
  );
}

/**
 * The chosen cell: its query, its key and its weight in full.
 * @param {{cell: Cell | null, bin: number}} props
 */
export function CellReadout({ cell, bin }) {
  if (!cell)
    return (
      <span class="soft">
        Point at the map to read a weight in double precision. Drag, scroll, pinch or use the arrow
        keys to move.
      </span>
    );
  if (cell.error) return <span class="soft">{cell.error.message}</span>;
  /** @param {string | null | undefined} text */
  const quoted = (text) => (text === null || text === undefined ? "" : <> “{visible(text)}”</>);
  return (
    <>
      query {count(cell.i)}
      <b class="q">{quoted(cell.query)}</b> → key {count(cell.j)}
      <b class="k">{quoted(cell.key)}</b>
      <br />
      {cell.visible && cell.dot === null ? (
        cell.p === null ? (
          "not among the largest weights of this query, which are all that was kept"
        ) : (
          <>
            weight <b>{full(cell.p)}</b>
          </>
        )
      ) : cell.visible ? (
        <>
          weight <b>{full(cell.p)}</b>{" "}
          <span class="soft">
            (q·k {short(cell.dot)}, scaled {short(cell.scaled)}
            {cell.lse === null ? "" : `, ln Σ ${short(cell.lse)}`})
          </span>
        </>
      ) : (
        "masked: this query may not attend to this key"
      )}
      {bin > 1 && (
        <>
          <br />
          <span class="soft">one of {count(bin * bin)} weights in this pixel</span>
        </>
      )}
    </>
  );
}

/**
 * The colours and their limits. A change needs no request.
 * @param {{chosen: State["map"], go: Go, info: MapInfo, bin: number, sampled: boolean}} props
 */
export function ColourScale({ chosen, go, info, bin, sampled }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [low, high] = colourLimits(chosen, bin, info);
  useEffect(() => {
    if (canvas.current) paintScale(canvas.current, chosenPalette(chosen), sampled);
  }, [chosen.palette, sampled]);
  /** @param {0 | 1} which */
  const set = (which) => (/** @type {Event & {currentTarget: HTMLInputElement}} */ event) => {
    const next = [low, high];
    next[which] = Number(event.currentTarget.value);
    if (next[0] >= next[1]) next[1 - which] = next[which] + (which ? -1 : 1);
    go({ map: { limits: next.join(",") } }, false);
  };
  /** @param {number} power */
  const powerOfTwo = (power) =>
    power === ZERO ? (
      "0"
    ) : power === 0 ? (
      "1"
    ) : power > 0 ? (
      short(2 ** power, 3)
    ) : (
      <>
        2<sup>{String(power).replace("-", "−")}</sup>
      </>
    );
  const unit = chosen.aggregate === "lift" ? " ×" : "";
  return (
    <div class="scale">
      <canvas ref={canvas} aria-hidden="true" />
      <div class="ends">
        <span>
          {low === ZERO ? "" : "≤ "}
          {powerOfTwo(low)}
          {unit}
        </span>
        <span class="soft">
          {chosen.aggregate}, {chosen.scale === "root" ? "√" : chosen.scale}
          {sampled ? ", sampled" : ""}
        </span>
        <span>
          {low === ZERO ? "" : "≥ "}
          {powerOfTwo(high)}
          {unit}
        </span>
      </div>
      <div class="limits">
        <label for="telescope-low">from</label>
        <input
          id="telescope-low"
          type="range"
          min="-32"
          max="7"
          step="1"
          value={low}
          aria-valuetext={`2 to the power ${low}`}
          onInput={set(0)}
        />
        <label for="telescope-high">to</label>
        <input
          id="telescope-high"
          type="range"
          min="-31"
          max="8"
          step="1"
          value={high}
          aria-valuetext={`2 to the power ${high}`}
          onInput={set(1)}
        />
      </div>
      <div class="legend" style={{ marginTop: "6px" }}>
        <i class="chip hatch" style={{ width: "22px", height: "12px" }} /> masked
      </div>
      <div class="legend" style={{ marginTop: "6px" }}>
        <span>
          Bars above: the weight that each key receives. Bars on the left: the entropy of each
          query. Orange or dashed: from a sample.
        </span>
        {chosen.limits && (
          <button
            type="button"
            class="button"
            style={{ minHeight: "26px", padding: "0 8px", fontSize: "12.5px" }}
            onClick={() => go({ map: { limits: null } })}
          >
            automatic limits
          </button>
        )}
      </div>
    </div>
  );
}

/**
 * Paint a palette from left to right, with white stripes if the map is sampled.
 * @param {HTMLCanvasElement} canvas
 * @param {Colour[]} palette
 * @param {boolean} sampled
 */
function paintScale(canvas, palette, sampled) {
  const context = context2d(canvas);
  canvas.width = 256;
  canvas.height = 16;
  for (let at = 0; at < 256; at += 1) {
    context.fillStyle = css(paletteColour(palette, at / 255));
    context.fillRect(at, 0, 1, 16);
  }
  if (!sampled) return;
  context.strokeStyle = "#fff9";
  context.lineWidth = 2;
  for (let at = -16; at < 256; at += 12) {
    context.beginPath();
    context.moveTo(at, 16);
    context.lineTo(at + 16, 0);
    context.stroke();
  }
}
