/** The answers of the API, for the type checker alone: nothing of this file is in the bundle. */

/** JSON has no infinities: the API sends "-inf", "inf" and "nan" as strings. */
type JsonNumber = number | string | null | undefined;

interface Attention {
  l: number;
  name: string;
  title: string | null;
  kind: string;
  heads: number[];
  n_q: number;
  n_k: number;
  d_k: number;
  mask: string;
  has?: Record<string, boolean>;
  why?: Record<string, string>;
}

interface Run {
  run: string;
  kind: string;
  title: string;
  model: string;
  text: string | null;
  written: string | null;
  example: ExampleFacts | null;
  /** What a reader should know before believing the numbers. */
  notice: string | null;
  /** In an exported file: the attention and head that it holds in full. */
  held?: { l: number; h: number };
  output: {
    kind: string;
    n: number;
    words: { name: string; first: number; i: number; word: number }[];
  } | null;
  attentions: Attention[];
}

/** A worked example: the matrices that it is computed from, and a scene for each attention. */
interface ExampleFacts {
  name: string;
  origin: string;
  normalize: string;
  inputs: { name: string; rows: string[] | null; numbers: number[][] }[];
  scenes: { title: string; caption: string; query: number; findings: string[]; inputs: string[] }[];
}

/** The answer to /runs/{run}/start: what a reader should see first. */
interface Start {
  l: number;
  h: number;
  i: number;
}

/** The answer to /runs/{run}/perspectives. */
interface PerspectivesAnswer {
  l: number;
  i: number;
  word: number;
  names: string[];
  columns: string[];
  heads: { l: number; h: number; habit: string | null; share: number; weights: number[] }[];
  pair: number[] | null;
}

/** The answer to /runs/{run}/output. */
interface OutputAnswer {
  i: number;
  n: number;
  kind: string;
  vocabulary: number;
  chosen: string | null;
  /** The written word at `i`, of a translator: `p` is the product of those of its pieces. */
  word: { name: string; p: number; pieces: { i: number; text: string; p: number }[] } | null;
  candidates: { id: number; text: string; append: string; logit: number; p: number }[];
  kept: number;
}

/** The answer to /runs/{run}/trace: every step of one query. Numbers of `steps` may be strings. */
interface Trace {
  l: number;
  h: number;
  i: number;
  token: string;
  n_k: number;
  keys: number[];
  tokens: string[];
  formula: string;
  score: string;
  scale: number;
  stream: { before: number[]; after: number[] } | null;
  query: number[];
  key: number[][];
  value: number[][] | null;
  factors: { query: number[]; key: number[][] } | null;
  terms: number[][];
  steps: { name: string; formula: string; numbers: JsonNumber[] }[];
  lse: number | null;
  sink: number | null;
  context: number[] | null;
  rest: { keys: number; weight: number; context: number[] | null };
}

/** The answer to /runs/{run}/tokens: tokens `start` to `start + tokens.length` of `n`. */
interface TokenRange {
  tokens: string[];
  start: number;
  n: number;
  words: number[] | null;
  names: string[] | null;
}

/** The answer to /runs/{run}/sharpest. */
interface Sharpest {
  l: number;
  mean: number;
  h: number;
  head: number;
  of: number;
}

/** The answer to /runs/{run}/map. At zoom max_zoom a pixel of a tile is one cell of the matrix. */
interface MapInfo {
  n_q: number;
  n_k: number;
  tile: number;
  max_zoom: number;
  how: string[];
  /** Whether the map is made of the largest weights of each query alone. */
  top?: boolean;
}

/** A weight under the pointer: the answer to /runs/{run}/cell, or the error. */
interface Cell {
  i: number;
  j: number;
  query?: string;
  key?: string;
  visible?: boolean;
  dot?: number | null;
  scaled?: number | null;
  lse?: number | null;
  p?: number | null;
  error?: Error;
}

/**
 * The answer to /runs/{run}/heads: a small map of each head of a layer, and what each head does by
 * habit.
 */
interface HeadsAnswer {
  l: number;
  rows: number;
  columns: number;
  exact: boolean;
  maps: HeadMap[];
  habits: Record<string, any>[] | null;
  /** The words of the rows and columns, where they are words. */
  names?: string[];
  columns_of?: string[];
  /** The keys whose share of the weight is each habit, in words. */
  habit_keys: Record<string, string>;
  /** The share from which on a habit names the kind of a head. */
  clear: number;
}

interface HeadMap {
  h: number;
  share: JsonNumber[][];
}

/** The answer to /runs/{run}/alignment. */
interface AlignmentAnswer {
  rows: string[];
  columns: string[];
  weights: JsonNumber[][];
  /** The share of all weight that is known: less than 1 where a recording kept summaries. */
  known?: number;
  real_rows: number[];
  real_columns: number[];
}

/** The answer to /runs/{run}/geometry. */
interface GeometryAnswer {
  l: number;
  start: number;
  tokens: string[];
  before: number[][];
  after: number[][];
  explained: number[];
  moved: number[];
  cosines: { before: number[][]; after: number[][] } | null;
}

/**
 * The answer to /runs/{run}/answer: what was written, and by which `how` its sources can be found.
 */
interface AnswerOfRun {
  /** Why a run has no sources at all; null if it has some. */
  why: string | null;
  across: boolean;
  begins: number;
  ends: number;
  prompt: number | null;
  start: number;
  tokens: string[];
  words: number[];
  span: number[];
  /** Why a `how` cannot be used; null if it can. */
  hows: Record<string, string | null>;
  hide: string | null;
}

/** The answer to /runs/{run}/sources. */
interface SourcesAnswer {
  how: string;
  meaning: string;
  first: number;
  end: number;
  answer: string[];
  n: number;
  by: string;
  counts: Record<string, number>;
  most: number;
  low: number;
  high: number;
  overview: number[] | null;
  start: number;
  stop: number;
  tokens: string[];
  /** For each token, where its segment begins and the segment's score. */
  segments: [number, number][];
  rows: SourceRow[];
  more: number;
}

interface SourceRow {
  start: number;
  stop: number;
  tokens: number;
  score: number;
  share: number;
  text: string;
  /** Whether this is what comes from the answer's own tokens. */
  own: boolean;
}

/** The answer to /runs/{run}/hidden: log-probabilities in nats. */
interface HiddenAnswer {
  before: number;
  after: number;
  kl: number;
  tokens: { text: string; before: number; after: number; instead: string | null }[];
  likeliest: { before: { text: string; p: number }[]; after: { text: string; p: number }[] }[];
  wrote: { before: string | null; after: string | null };
}

/** A head of an atlas: the mean of every column by name, null where it is unknown. */
interface HeadOfAtlas {
  layer: string;
  head: number;
  kind: string;
  [column: string]: string | number | null;
}

/** The answer to /atlases/{name}. */
interface AtlasAnswer {
  atlas: string;
  model: string | null;
  texts: number;
  tokens: number;
  skipped: number;
  layers: string[];
  columns: string[];
  /** The columns that are shares of one. */
  shares: string[];
  habit_keys: Record<string, string>;
  clear: number;
  maps: Record<string, number>;
  heads: HeadOfAtlas[];
}

/** The answer to /atlases/{name}/head. */
interface AtlasHeadAnswer {
  layer: string;
  head: number;
  kind: string;
  profiles: Record<string, { labels: string[]; shares: (number | null)[] }>;
  evidence: Record<
    string,
    {
      share: number;
      text: number;
      first: number;
      source: string;
      line: number;
      tokens: number;
      excerpt: string;
    }[]
  >;
  maps: Record<string, number[][]>;
  [column: string]: any;
}

/** A head in two atlases. */
interface HeadChange {
  layer: string;
  number: number;
  kind_before: string;
  kind_after: string;
  habit: string;
  before: number;
  after: number;
  change: number;
  errors: number | null;
  moved: number | null;
}

/** The answer to /positions: a position encoding without a model. */
interface EncodingTable {
  kind: string;
  d: number;
  table: number[][];
  curves: { name: string; numbers: number[] }[];
  difference: number;
}

/** The answer to /runs/{run}/encoding: what a model does for positions. */
interface EncodingAnswer {
  kind: string;
  bias: string | null;
  added: { features: number; shown: number[]; table: number[][] } | null;
  angles: { pairs: string; radians: number[] } | null;
  by_distance: {
    distances: number[];
    scores: number[];
    weights: number[];
    pairs: number[];
    queries: number;
  };
}

/** The answer to /runs/{run}/positions: one query with its position and without. */
interface PositionsAnswer {
  tokens: string[];
  added: { embedded: number[]; position: number[]; dots: number[] } | null;
  biases: JsonNumber[] | null;
  with: { scores: JsonNumber[]; weights: JsonNumber[] };
  without: { scores: JsonNumber[]; weights: JsonNumber[] } | null;
  why: string | null;
}
