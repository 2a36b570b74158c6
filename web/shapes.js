/**
 * What the page asks for, and the shape of each answer. Every path begins with /api/v1.
 *
 * Numbers that JSON lacks are the strings "-inf", "inf" and "nan". `l` is the place of an attention in `attentions`.
 *
 *     GET  runs                              → {runs: Run[], models: string[]}
 *     POST runs {text, target?, model?}      → Run
 *     GET  runs/{run}                        → Run
 *     GET  runs/{run}/tokens?l&axis&start&stop   → Tokens     axis q or k, at most 4096 of them
 *     GET  runs/{run}/trace?l&h&i            → Trace
 *     GET  runs/{run}/heads?l                → Heads
 *     GET  runs/{run}/geometry?l             → Geometry
 *     GET  runs/{run}/alignment?l            → Alignment
 *     GET  runs/{run}/cell?l&h&i&j           → Cell
 *     GET  runs/{run}/cells?l&h&i&j&rows&columns → {rows: number[][]}   weights in float64, at most 1024 of them
 *     GET  runs/{run}/map?l&h                → MapInfo
 *     GET  runs/{run}/tiles/{z}/{x}/{y}?l&h&agg  → float16 log2 weights, row by row; headers X-Exact, X-Samples
 *     GET  runs/{run}/tracks/{z}/{x}?l&h&kind    → float32; kind entropy or received; headers as of tiles
 *
 * @typedef {{run: string, title: string, model: string, text?: string, target?: string, rev: string, attentions: Attention[]}} Run
 * @typedef {{name: string, stack: string, layer: number, kind: "self" | "cross", heads: number, n_q: number, n_k: number,
 *   d_k: number, d_v: number, formula: string, mask: string, keep: string}} Attention
 * @typedef {{start: number, tokens: string[], ids?: number[], words?: number[]}} Tokens
 * @typedef {{i: number, formula: string, steps: {name: string, formula: string}[], before: number[][] | null, q: number[], k: number[][],
 *   v: number[][], scores: number[], scaled: number[], masked: (number | string)[], weights: number[], context: number[],
 *   scale: number, lse: number}} Trace
 * @typedef {{l: number, heads: {number: number, kind: string, habits: Record<string, number | null>, weights: number[][]}[]}} Heads
 * @typedef {{before: number[][], after: number[][], explained: number[], cosines: {before: number[][], after: number[][]}}} Geometry
 * @typedef {{source: string[], target: string[], layers: {l: number, heads: number[][][]}[]}} Alignment
 * @typedef {{i: number, j: number, dot: number, scaled: number, masked: boolean, lse: number, p: number}} Cell
 * @typedef {{n_q: number, n_k: number, tile: number, max_zoom: number, aggs: string[], causal: boolean}} MapInfo
 */
export {};
