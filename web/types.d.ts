/** Written by tools/api_types.py from the dataclasses of telescope.explorer: the answers of the API,
 * for the type checker alone. Nothing of this file is in the bundle. */

/** JSON has no infinities: the API sends "-inf", "inf" and "nan" as strings. */
type JsonNumber = number | string | null | undefined;

/** The models that can read a text. */
interface ModelsAnswer {
  models: string[];
  /** "translator", "gpt", "encoder" or "other", of each */
  kinds: Record<string, string>;
  default: string | null;
  /** the most tokens of a typed text; limits: of one that each model reads at once */
  longest: number;
  limits: Record<string, number>;
}

/** q·k of random vectors with d features, as it is and divided by √d. */
interface VarianceAnswer {
  d: number;
  /** the most features that can be asked for */
  most: number;
  /** where the histogram ends, on both sides */
  edge: number;
  dot: ScoreSpread;
  divided: ScoreSpread;
}

/** What random scores do, and the scores and weights of one query. */
interface ScoreSpread {
  variance: number;
  /** the largest of a query's 8 weights, the mean over the queries */
  largest: number;
  /** Σ w(1 - w) over a query's weights, the mean over the queries */
  gradient: number;
  /** 97 counts */
  histogram: number[];
  scores: number[];
  weights: number[];
}

/** A position encoding without a model. */
interface EncodingTable {
  /** "sinusoidal", "rotary" or "alibi" */
  kind: string;
  d: number;
  /** positions; widths: the features that the page offers */
  n: number;
  widths: number[];
  /**
   * what is added (position x feature), the angles in radians (position x pair), or the bias of ALiBi (head x distance)
   */
  table: number[][];
  /**
   * by distance: the dot product of two positions, the score of one query and one key, or the weight of a key where all
   * scores are equal
   */
  curves: Curve[];
  /** the largest of such a score between positions of the same distance: 0 but for rounding */
  difference: number;
}

/** A number for each distance from 0 to 63. */
interface Curve {
  name: string;
  numbers: number[];
}

/**
 * The runs that the reader may open: sentences that were typed in this browser, the most recently used of them first,
 * then recordings.
 */
interface RunsAnswer {
  runs: Run[];
}

/** Everything about a run but its numbers. */
interface Run {
  run: string;
  /** changes with the contents */
  rev: string;
  /** "sentence", "recording" or "example" */
  kind: string;
  title: string;
  model: string;
  text: string | null;
  /** the translation that it was given to write; null if it wrote its own */
  target: string | null;
  /** what a translator wrote */
  written: string | null;
  /** what was recorded: "summaries", "queries-keys" or "steps" */
  keep: string;
  example: ExampleFacts | null;
  /** what a reader should know before believing the numbers */
  notice: string | null;
  /** what the model made of a sentence; null of a recording */
  output: OutputFacts | null;
  attentions: Attention[];
  /** of a text that an atlas names */
  opened?: OpenedText;
  /** in an exported file */
  held?: HeldHead;
}

/** A worked example: the matrices that it is computed from, and a scene for each attention. */
interface ExampleFacts {
  name: string;
  origin: string;
  /** "softmax" or "by_sum" */
  normalize: string;
  inputs: ExampleInput[];
  scenes: ExampleStep[];
}

/** A matrix that a worked example is computed from; `rows` labels its rows where they are words. */
interface ExampleInput {
  name: string;
  rows: string[] | null;
  numbers: number[][];
}

/** A scene of a worked example, one for each attention; `query` is the one to look at first. */
interface ExampleStep {
  title: string;
  caption: string;
  query: number;
  findings: string[];
  inputs: string[];
}

/** What the model made of a text: `n` queries can be asked for; a GPT has read its words, and written none. */
interface OutputFacts {
  /** "gpt" or "translator" */
  kind: string;
  n: number;
  words: WrittenWord[];
}

/** A word that a translator wrote. */
interface WrittenWord {
  name: string;
  /** the query that wrote its first token; i: its last */
  first: number;
  i: number;
  /** its row in an alignment */
  word: number;
}

/** One attention of a run. */
interface Attention {
  /** its index in the run's list of attentions */
  l: number;
  name: string;
  /** a name for people, where it has one */
  title: string | null;
  /** "encoder", "decoder", "cross" or "self" */
  kind: string;
  /** the numbers of the heads in the model */
  heads: number[];
  batch: number;
  /** queries that were kept; n_k: keys */
  n_q: number;
  n_k: number;
  /** features of a key; d_v: of a value, null where values were not kept */
  d_k: number;
  d_v: number | null;
  /** such as softmax(mask(q·k / √16)) v */
  formula: string;
  mask: string;
  /** which requests are answered: trace, context, map, geometry, alignment, tokens, after, tiles, positions, image */
  has: Record<string, boolean>;
  /** the reason for each that is not, which answers 409 */
  why: Record<string, string>;
}

/** The head whose evidence a text is, and whether the text is all that the atlas read. */
interface OpenedText {
  l: number;
  h: number;
  whole: boolean;
}

/** The attention and head that an exported file holds in full. */
interface HeldHead {
  l: number;
  h: number;
}

/** All atlases that are open. */
interface AtlasList {
  atlases: AtlasFacts[];
}

/** An atlas. */
interface AtlasFacts {
  atlas: string;
  /** the name of its class */
  model: string | null;
  texts: number;
  tokens: number;
  /** texts that were not read */
  skipped: number;
  layers: string[];
  /** the measures of each head; shares: those that are shares of one */
  columns: string[];
  shares: string[];
  /** the keys whose share of the weight is each habit, in words */
  habit_keys: Record<string, string>;
  /** the share from which on a habit names the kind of a head */
  clear: number;
  /** the longest text of each averaged map, and how many texts it has */
  maps: Record<string, number>;
}

/** An atlas with all of its heads. */
interface AtlasAnswer {
  atlas: string;
  /** the name of its class */
  model: string | null;
  texts: number;
  tokens: number;
  /** texts that were not read */
  skipped: number;
  layers: string[];
  /** the measures of each head; shares: those that are shares of one */
  columns: string[];
  shares: string[];
  /** the keys whose share of the weight is each habit, in words */
  habit_keys: Record<string, string>;
  /** the share from which on a habit names the kind of a head */
  clear: number;
  /** the longest text of each averaged map, and how many texts it has */
  maps: Record<string, number>;
  heads: HeadOfAtlas[];
}

/** A head of an atlas: the mean of every column by name, null where it is unknown. */
interface HeadOfAtlas {
  layer: string;
  head: number;
  kind: string;
  [column: string]: any;
}

/**
 * Everything about one head: of every column its mean, such as entropy, and entropy.std, entropy.low, entropy.q5%, …,
 * entropy.high, entropy.count.
 */
interface AtlasHeadAnswer {
  layer: string;
  head: number;
  kind: string;
  [column: string]: any;
  /** by "distance", "position" and "class" */
  profiles: Record<string, AtlasProfile>;
  /** the strongest texts of each habit */
  evidence: Record<string, EvidenceText[]>;
  /** the averaged map of texts up to each length, 32 x 32 */
  maps: Record<string, number[][]>;
}

/** The share of a head's weight by distance, by position or by the class of a token; null where it is unknown. */
interface AtlasProfile {
  labels: string[];
  shares: (number | null)[];
}

/** A text in which a habit of a head is strong. */
interface EvidenceText {
  share: number;
  /** its number in the corpus */
  text: number;
  /** the first token of the sequence within the text */
  first: number;
  source: string;
  /** of the file `source` */
  line: number;
  tokens: number;
  excerpt: string;
}

/** The heads of two atlases of one shape, those that changed the most first. */
interface AtlasComparison {
  heads: HeadChange[];
}

/** A head in two atlases. */
interface HeadChange {
  layer: string;
  number: number;
  kind_before: string;
  kind_after: string;
  /** the one that changed the most: its share before and after */
  habit: string;
  before: number;
  after: number;
  /** the change in units of its standard error; below 3 it may be chance */
  errors: number | null;
  /** the share of the weight that went to other distances */
  moved: number | null;
  change: number;
}

/** The attention, head and query that a reader should see first. */
interface Start {
  l: number;
  h: number;
  i: number;
}

/**
 * The tokens `start` to `stop` of `n`. A token without text is its name, such as </s>, or its id. In cross-attention, a
 * query is named by the token that it predicts: "…" for the last one if it was never read.
 */
interface TokenRange {
  l: number;
  /** "q" or "k" */
  axis: string;
  start: number;
  stop: number;
  n: number;
  tokens: string[];
  /** the index of each token's word, over the whole axis; null where there are no words */
  words: number[] | null;
  /** the texts of the words in the range, from words[0] on */
  names: string[] | null;
}

/**
 * Every step of one query: of all keys if there are at most 512; else of the 64 with the largest weights, by position,
 * and the sum over all others in `rest`.
 */
interface Trace {
  l: number;
  h: number;
  i: number;
  b: number;
  /** the query's token; tokens: those of the keys */
  token: string;
  /** how many keys there are; keys: the positions of those in the answer */
  n_k: number;
  keys: number[];
  tokens: string[];
  /** of the whole attention; score: of a score */
  formula: string;
  score: string;
  scale: number;
  /** null where it was not kept */
  stream: Stream | null;
  query: number[];
  key: number[][];
  /** null where values were not kept, as is context */
  value: number[][] | null;
  /** null where the score is no product */
  factors: Factors | null;
  /** their sums over the features are the scores */
  terms: number[][];
  /** scores, scaled, capped, biased, masked, weights: those that the definition has */
  steps: Step[];
  /** ln Σ exp(score) over all keys; null where the normaliser is not softmax */
  lse: number | null;
  sink: number | null;
  /** Σ weight · value + rest.context */
  context: number[] | null;
  rest: Rest;
}

/** The residual stream before and after an attention, at one query. */
interface Stream {
  before: number[];
  after: number[];
}

/** What the terms of the scores are products of. */
interface Factors {
  query: number[];
  key: number[][];
}

/** One step from scores to weights, with a number for each key. */
interface Step {
  name: string;
  formula: string;
  numbers: JsonNumber[];
}

/** The sum over all keys that an answer leaves out. */
interface Rest {
  keys: number;
  weight: number;
  context: number[] | null;
}

/** One query after its heads. */
interface AfterAnswer {
  l: number;
  i: number;
  token: string;
  pre_norm: boolean;
  /** joined, projected, before, added, normed (post-norm only), hidden, fed, passed */
  stages: Stage[];
  /** the largest from the model's own vector */
  difference: number;
  /** "feed-forward" or "cross" */
  follows: string;
  /** the cosine between the vectors before and after */
  moved: number;
  /** null in saved files, and of more than 8,192 numbers */
  mixed: MixedHeads | null;
}

/** One vector on the way: its name, its number of features and its length. */
interface Stage {
  name: string;
  size: number;
  norm: number;
  /** the lengths of the heads' parts; of "joined" and "projected" */
  heads?: number[];
  /** between the vector and the one it was added to; of "added" and "passed" */
  cosine?: number;
  /** the share of features that are not 0; of "hidden" */
  active?: number;
  /** its 8 largest features, by size; of "hidden" */
  largest?: Unit[];
}

/** One hidden feature of a feed-forward network. */
interface Unit {
  unit: number;
  value: number;
}

/** The heads, side by side, times W_O: the sum of all parts and the bias is what is added. */
interface MixedHeads {
  heads: number[];
  /** of each head; parts: what its rows of W_O make of it */
  contexts: number[][];
  parts: number[][];
  bias: number[] | null;
  sum: number[];
}

/** The way of one query through its stack of blocks. In a decoder it begins with the token that the query reads. */
interface FlowAnswer {
  l: number;
  i: number;
  token: string;
  size: number;
  /** whether what is added is computed from the normalised vector, or their sum is normalised */
  pre_norm: boolean;
  stations: Station[];
}

/** A vector at one station of its way, with its length. */
interface Station {
  /** "embedding", "position", "self", "cross", "feed-forward" or "output" */
  kind: string;
  /** the attention of the station; of others, the last one in front of it */
  l: number;
  /** the length of the vector behind the station */
  norm: number;
  /** between the vectors in front of the station and behind it; null of the first */
  cosine: number | null;
}

/** One number of a query, key or value as products. */
interface ProductAnswer {
  l: number;
  h: number;
  /** "q", "k" or "v"; at: the query or key; m: the feature */
  of: string;
  at: number;
  m: number;
  token: string;
  /** "W_q", "W_k" or "W_v" */
  matrix: string;
  /** whether x was normalised before the matrix */
  normed: boolean;
  /** what the matrix reads, x; column: of the matrix */
  row: number[];
  column: number[];
  bias: number | null;
  /** of all products and the bias */
  sum: number;
  /** whether rotary positions change the number after that */
  turned: boolean;
  /** as the head has it */
  number: number;
}

/** One query and the output, with one attention changed. */
interface WhatIfAnswer {
  l: number;
  h: number;
  i: number;
  b: number;
  trace: Trace;
  /** the weight of each key of the trace; after: edited */
  before: number[];
  after: number[];
  /** the key that changed the most, by its place in the trace */
  changed: number | null;
  /** null without a model */
  output: OutputChange | null;
  /** whether the model runs; without one, the attention is changed alone */
  reaches: boolean;
}

/** What an edit does to the output. */
interface OutputChange {
  kind: string;
  /** of the next token after a GPT's text; of a translation, the mean over its tokens; nats */
  kl: number;
  /** the likeliest next tokens, of a GPT; after: edited */
  before: Candidate[];
  after: Candidate[];
  /** of a translation */
  words: WordChange[];
}

/** A token that may come next, and its probability. */
interface Candidate {
  text: string;
  p: number;
}

/**
 * A written word, its probability before and after, and the beginning of what would now be written; null if nothing
 * else.
 */
interface WordChange {
  name: string;
  first: number;
  i: number;
  word: number;
  before: number;
  after: number;
  instead: string | null;
}

/**
 * Why a query looks at a key: its score, split by who wrote what the two read. With another key in `than`, all numbers
 * are those of the key less those of the other one: what all keys have alike, which softmax does not see, cancels.
 */
interface WhyAnswer {
  l: number;
  h: number;
  i: number;
  j: number;
  /** the index of the other key, or null; other: what it is called */
  than: number | null;
  b: number;
  /** what the query is called; in cross-attention, the word that it writes */
  query: string;
  key: string;
  other: string | null;
  /** the token that the query read */
  read: string;
  /** null where the score cannot be split */
  split: ScoreSplit | null;
  /** why it cannot, in one sentence */
  reason: string | null;
}

/**
 * A score as the sum of its terms: a pair of authors each. Summed to the authors of either side, the terms add up to
 * the same score.
 */
interface ScoreSplit {
  /** q · k · scale, before softcap, bias and mask; masked: after them */
  score: number;
  masked: number;
  /** of the key, after softmax */
  weight: number;
  query: AuthorSide;
  key: AuthorSide;
  /** the six largest terms */
  pairs: AuthorPair[];
  /** how many there are */
  terms: number;
  sentence: string;
}

/**
 * The authors of what a query, or a key, reads, the largest first: at most eight by name, and none below a thousandth
 * of the largest.
 */
interface AuthorSide {
  authors: AuthorShare[];
  /** the sum of all others; left: how many they are */
  others: number;
  left: number;
}

/** What one author has to do with a score. */
interface AuthorShare {
  name: string;
  value: number;
  /** the attention, where the author is a head of this run; h: the head */
  l: number | null;
  h: number | null;
}

/** One term of a score: an author of the query, on an author of the key. */
interface AuthorPair {
  query: string;
  key: string;
  value: number;
}

/** The tokens of the whole vocabulary that the output of a head pushes up and down most, after one query. */
interface WritesAnswer {
  l: number;
  h: number;
  i: number;
  b: number;
  /** the token that the query read */
  after: string;
  /** the word that it wrote, in cross-attention */
  written: string | null;
  /** null where the head has no logits, as is down */
  up: PushedToken[] | null;
  down: PushedToken[] | null;
  /** why it has none, in one sentence */
  reason: string | null;
}

/** A token that a head pushes up or down. */
interface PushedToken {
  id: number;
  text: string;
  /** what the head adds to its logit, less what it adds to all logits on average */
  value: number;
  /** the key that carried most of it; j: its index, null where it stands for many */
  key: string;
  j: number | null;
  /** what the key carried */
  part: number;
}

/** Every step of one query and one key. */
interface CellAnswer {
  l: number;
  h: number;
  i: number;
  j: number;
  b: number;
  query: string;
  key: string;
  /** whether the mask lets the query see the key */
  visible: boolean;
  /** the score; null where a recording kept summaries, as are scaled and lse */
  dot: number | null;
  scaled: number | null;
  capped?: number;
  biased?: number;
  masked?: number;
  lse: number | null;
  /** the weight; null where the key is not among the largest weights of a summary */
  p: number | null;
}

/**
 * The weights of one query on keys j to j + 31, or to the last key; null where the key is masked, or not among the
 * largest weights, where a recording kept summaries.
 */
interface CellsAnswer {
  l: number;
  h: number;
  i: number;
  j: number;
  b: number;
  p: (number | null)[];
}

/** What a model does for positions. */
interface EncodingAnswer {
  l: number;
  h: number;
  /** "sinusoidal", "learned", "rotary", "none" or "unknown" */
  kind: string;
  /** such as alibi(8) */
  bias: string | null;
  added: AddedTable | null;
  angles: Angles | null;
  by_distance: ByDistance;
}

/** What is added to the embeddings of the first positions: the features that are shown, of all `features`. */
interface AddedTable {
  features: number;
  shown: number[];
  table: number[][];
}

/** By how much each pair of features is rotated from one position to the next. */
interface Angles {
  /** "halves" or "neighbours" */
  pairs: string;
  radians: number[];
}

/** The mean score and weight by key - query, over the visible pairs of some queries. */
interface ByDistance {
  distances: number[];
  scores: number[];
  weights: number[];
  /** how many pairs have each distance */
  pairs: number[];
  /** how many queries were read */
  queries: number;
}

/** One query with its position and without. */
interface PositionsAnswer {
  l: number;
  h: number;
  i: number;
  tokens: string[];
  added: AddedVectors | null;
  /** what is added to the scores; null without a bias */
  biases: JsonNumber[] | null;
  with: ScoresAndWeights;
  /** the same for a head that does not know positions; null where that is not known */
  without: ScoresAndWeights | null;
  /** the reason then */
  why: string | null;
}

/** The embedding of one token, what is added to it, and the dot products of its position with all others. */
interface AddedVectors {
  embedded: number[];
  position: number[];
  dots: number[];
}

/** The scores before the mask, and the weights. */
interface ScoresAndWeights {
  scores: JsonNumber[];
  weights: JsonNumber[];
}

/** A small map of each head of a layer, and what each head does by habit. */
interface HeadsAnswer {
  l: number;
  /** of each map, at most 48; columns likewise */
  rows: number;
  columns: number;
  exact: boolean;
  /** how many of a pixel's queries were read; 0 where the maps are exact */
  samples: number;
  maps: HeadMap[];
  /** null where they would need a pass over a long text */
  habits: HeadMeasures[] | null;
  /** the keys whose share of the weight is each habit, in words */
  habit_keys: Record<string, string>;
  /** how far heads look, in words, by the names of the numbers */
  distances: Record<string, string>;
  /** the share from which on a habit names the kind of a head */
  clear: number;
  /** the words of the rows, where they are words; columns_of: of the columns */
  names?: string[];
  columns_of?: string[];
}

/** A head's weights, pooled where there are more tokens than pixels. */
interface HeadMap {
  h: number;
  share: JsonNumber[][];
}

/** The kind and all measures of a head, by name. */
interface HeadMeasures {
  h: number;
  [column: string]: any;
}

/** The vectors of tokens before and after the attention, projected onto one plane. */
interface GeometryAnswer {
  l: number;
  start: number;
  stop: number;
  /** tokens of the text */
  n: number;
  tokens: string[];
  /** [x, y] of each token, in one plane with `after` */
  before: number[][];
  after: number[][];
  /** the share of the variance along x and y */
  explained: number[];
  /** the cosine between a token's vectors before and after */
  moved: number[];
  /** null of more than 64 tokens */
  cosines: Cosines | null;
  /** of a worked example, whose points can be moved; null of a model */
  space: PlaneInSpace | null;
}

/** The cosine between the vectors of every two tokens. */
interface Cosines {
  before: number[][];
  after: number[][];
}

/**
 * Where the plane of a worked example lies among its features: a vector is drawn at the dot products of vector - centre
 * with both axes. before, after the vectors of the tokens, whole
 */
interface PlaneInSpace {
  axes: number[][];
  centre: number[];
  before: number[][];
  after: number[][];
  /** the row of the input x that each token's vector before is */
  rows: number[];
}

/** The weights between words, of one head or of the mean of all heads. */
interface AlignmentAnswer {
  /** the share of all weight that is known: less than 1 where a recording kept summaries */
  known: number;
  l: number;
  /** a head's number, or "mean" */
  h: number | string;
  rows: string[];
  columns: string[];
  weights: JsonNumber[][];
  /** the rows that are words of the text, without special tokens; real_columns likewise */
  real_rows: number[];
  real_columns: number[];
}

/** The attention whose heads, in the mean, align most sharply. */
interface Sharpest {
  l: number;
  /** each word's largest weight in the mean of the heads, averaged over words */
  mean: number;
  /** the sharpest head; head: the same number of it */
  h: number;
  head: number;
  /** how many attentions were compared */
  of: number;
}

/** The word of query i in all heads of the attentions of l's kind. */
interface PerspectivesAnswer {
  l: number;
  i: number;
  /** the word's row; names: of all rows */
  word: number;
  names: string[];
  columns: string[];
  heads: HeadOnWord[];
  /** the two heads that differ most in this word's weights, of those without a habit */
  pair: number[] | null;
}

/** A head among those that are compared, and its weights from one word to every column. */
interface HeadOnWord {
  l: number;
  h: number;
  /** "previous", "itself", "next", "first" or "sink" of a head that attends by position */
  habit: string | null;
  /** of all weight that goes there, over the text */
  share: number;
  weights: number[];
}

/** Some words, as every head of the attentions of l's kind attends to them from one word. */
interface ReadingsAnswer {
  l: number;
  /** the word, and i the query of its last token; between: the words that are compared */
  word: string;
  i: number;
  between: string[];
  /** the weight that each would get if all tokens got the same */
  even: number[];
  heads: HeadReading[];
  /** the two heads that differ most in these words, of those without a habit */
  pair: number[] | null;
  /** how many heads attend by position, and were left out to choose the pair */
  left: number;
  /** the text with a word inserted before the word; null where the run has no text */
  control: string | null;
}

/** What one head attends to from one word. */
interface HeadReading {
  l: number;
  h: number;
  /** "previous", "itself", "next", "first" or "sink" of a head that attends by position */
  habit: string | null;
  /** of all weight that goes there, over the text */
  share: number;
  /** on each of the compared words */
  weights: number[];
  /**
   * the compared word that gets more than its even weight, and more so than the others, by its place; null where none
   * does, and where the head attends by position
   */
  reads: number | null;
}

/**
 * What query i gives to each patch of the images among the keys, in every head; without i, what each patch receives
 * from all queries together.
 */
interface ImageAnswer {
  l: number;
  i: number | null;
  /** of query i; null without i */
  token: string | null;
  grids: ImageGrid[];
  /** the first 64 queries that are no patches */
  queries: ImageQuery[];
  heads: HeadOnImage[];
}

/** An image that keys are patches of. */
interface ImageGrid {
  /** where there are several, such as "image 1"; else empty */
  name: string;
  rows: number;
  columns: number;
  /** the query at each patch, row by row; null where there is none */
  queries: (number | null)[];
}

/** A query that is no patch, such as a class token or a word. */
interface ImageQuery {
  i: number;
  token: string;
}

/** One head. */
interface HeadOnImage {
  h: number;
  /** the share of the weight that is known: less than 1 where a recording kept summaries */
  known: number;
  /** for each image, the weight of each patch, row by row */
  weights: number[][];
  /** the tokens that get most of those that are no patches; rest: what all others get */
  others: TokenWeight[];
  rest: number;
}

/** A token that is no patch, and the weight that it gets. */
interface TokenWeight {
  token: string;
  weight: number;
}

/** What the model writes after query i. */
interface OutputAnswer {
  i: number;
  /** queries; vocabulary: tokens */
  n: number;
  /** "gpt" or "translator" */
  kind: string;
  vocabulary: number;
  /** what was written, or follows in the text that a GPT read; null behind its end */
  chosen: string | null;
  /** of the same token */
  id: number | null;
  /** the written word at `i`, of a translator */
  word: WordWithChance | null;
  /** ten, the likeliest first; behind them what was written, if it is none of these */
  candidates: NextToken[];
  /** how many tokens top_k and top_p leave */
  kept: number;
}

/** A written word; its probability is the product of those of its pieces. */
interface WordWithChance {
  name: string;
  p: number;
  pieces: PieceOfWord[];
}

/** A token of a written word, and its probability. */
interface PieceOfWord {
  i: number;
  text: string;
  p: number;
}

/** A token that may come next. */
interface NextToken {
  id: number;
  text: string;
  /** the characters that it adds to the text */
  append: string;
  logit: number;
  /** its probability after temperature, top_k and top_p */
  p: number;
}

/** The token that a seed draws after query i. The same seed draws the same token. */
interface DrawAnswer {
  i: number;
  seed: number;
  drawn: DrawnToken;
}

/** A token that was drawn. */
interface DrawnToken {
  id: number;
  text: string;
  /** the characters that it adds to the text */
  append: string;
  /** its probability after temperature, top_k and top_p */
  p: number;
  /** the random number, at least `below` and less than `below` + p */
  u: number;
  /** the sum of the probabilities of all likelier tokens */
  below: number;
}

/** Tokens that a GPT draws one after the other behind its text. */
interface WriteAnswer {
  /** the k-th token is drawn by the seed's k-th random number, those of `after` counted */
  seed: number;
  drawn: DrawnToken[];
  /** "end" where the model ended the text, "length" where it can read no more; else null */
  ended: string | null;
}

/**
 * What was written, and by which `how` its sources can be found. readers the attentions that read the context, by their
 * place in the run
 */
interface AnswerOfRun {
  why: null;
  /** whether the answer is in another text than its context */
  across: boolean;
  /** tokens of the context, where that is another text */
  n: number | null;
  /** the first position that was written; ends: one past the last */
  begins: number;
  ends: number;
  /** where the answer begins, if a prompt is known */
  prompt: number | null;
  /** the position of the first of `tokens`, at most 512 around `at` */
  start: number;
  tokens: string[];
  /** the number of each token's word */
  words: number[];
  /** first and end of the tokens with which a reader should begin */
  span: number[];
  readers: number[];
  /** why each `how` cannot be used; null if it can */
  hows: Record<string, string | null>;
  /** why no segment can be hidden; null if one can */
  hide: string | null;
}

/** Why a run has no sources at all. */
interface NoAnswer {
  why: string;
}

/** Where the tokens at the positions first to end - 1 come from. */
interface SourcesAnswer {
  how: string;
  /** of the scores; hows: all that can be asked for */
  meaning: string;
  hows: string[];
  first: number;
  end: number;
  /** the texts of the span */
  answer: string[];
  /** tokens of the context */
  n: number;
  /** how it was cut; counts: how many segments each way has */
  by: string;
  counts: Record<string, number>;
  /** the largest score of a segment */
  most: number;
  low: number;
  high: number;
  /** sums of scores over at most 512 equal parts of low to high */
  overview: number[] | null;
  /** the first of `tokens`; stop: one past the last */
  start: number;
  stop: number;
  tokens: string[];
  /** of each token; null where only segments have one */
  scores: number[] | null;
  /** for each token, where its segment begins and the segment's score */
  segments: [number, number][];
  /** the 200 largest; more: how many are left out */
  rows: SourceRow[];
  more: number;
}

/** A segment of the context, and what the span takes from it. */
interface SourceRow {
  name: string;
  /** the position of its first token; stop: one past its last */
  start: number;
  stop: number;
  /** how many */
  tokens: number;
  score: number;
  /** the score divided by the sum of all scores, each without its sign */
  share: number;
  text: string;
  /** whether this is what comes from the answer's own tokens */
  own: boolean;
}

/** The tokens first to end - 1 when the model cannot see the tokens start to stop - 1 of the context. */
interface HiddenAnswer {
  first: number;
  end: number;
  start: number;
  stop: number;
  /** their log-probability, in nats; after: with the segment hidden */
  before: number;
  after: number;
  /** of the next token, the mean over the tokens, in nats */
  kl: number;
  tokens: HiddenToken[];
  likeliest: LikeliestBeforeAfter[];
  wrote: WroteBeforeAfter;
}

/** A token of the answer, its log-probability before and after, and the likeliest one if that is now another. */
interface HiddenToken {
  text: string;
  before: number;
  after: number;
  instead: string | null;
}

/** The five likeliest tokens at one place of the answer. */
interface LikeliestBeforeAfter {
  before: Candidate[];
  after: Candidate[];
}

/** The whole translation, or the next words of a GPT; null where the model cannot write. */
interface WroteBeforeAfter {
  before: string | null;
  after: string | null;
}

/** How much weight each token of a part of the text gets from all queries; `most` is the largest of the whole text. */
interface ReceivedAnswer {
  l: number;
  h: number;
  start: number;
  stop: number;
  n: number;
  tokens: string[];
  received: JsonNumber[];
  most: number;
}

/** The largest weights of one query, as in a trace, with the one step "weights". */
interface TopAnswer {
  l: number;
  h: number;
  i: number;
  token: string;
  n_k: number;
  keys: number[];
  tokens: string[];
  steps: Step[];
  rest: Rest;
}

/** What the page needs before it requests tiles. At zoom max_zoom a pixel of a tile is one cell of the matrix. */
interface MapAnswer {
  l: number;
  h: number;
  b: number;
  n_q: number;
  n_k: number;
  /** pixels of a side */
  tile: number;
  max_zoom: number;
  how: string[];
  value: string;
  dtype: string;
  /** the share of queries whose softmax sum is known; every tile adds to it */
  known: number;
  /** whether the map is made of the largest weights of each query alone */
  top: boolean;
}
