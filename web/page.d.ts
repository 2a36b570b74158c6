/** Types that several files of the page share: nothing of this file is in the bundle. */

/** Red, green and blue, 0 to 255, and opacity if it is not 255. */
type Colour = number[];
type Theme = "light" | "dark";
type Axis = "q" | "k";

/** A value inside an html`…` template. The union with functions gives event handlers their parameter types. */
type TemplateValue =
  ((...args: any[]) => any) | object | string | number | boolean | null | undefined;

/** The steps of a trace as numbers, by the names of the walk: "mask" and "softmax" for "masked" and "weights". */
interface TraceRow {
  keys: number[];
  tokens: string[];
  steps: Record<string, number[]>;
  masks: boolean;
  weights: number[];
  /** e to the power of score - largest score; of a word, summed over its pieces. */
  powers: number[];
  /** The positions of the keys in each row: several, where pieces are joined into words. */
  members: number[][];
  split: boolean;
  formulas: Record<string, string>;
}

/** An answer while it is fetched: `value` is the last one that arrived, `fresh` whether it belongs to this request. */
interface Fetched<T = any> {
  value: T | null;
  error: Error | null;
  slow: boolean;
  fresh?: boolean;
}

/** What all screens share, as the address of the page holds it; null has not been chosen. */
interface State {
  /** The atlas that is shown instead of a run, another one beside it, a scatter or a grid, the columns across and up,
   * the only kind of heads that is not faded, and the habit whose strongest texts are listed. */
  atlas: string | null;
  other: string | null;
  look: string;
  col: string;
  row: string;
  only: string | null;
  habit: string | null;
  /** Sources: the tokens of the answer, how their sources are found, how the context is cut, the part of it that the
   * minimap shows, and the segment that is hidden, as start-stop. */
  first: number | null;
  end: number | null;
  via: string | null;
  cut: string | null;
  low: number | null;
  high: number | null;
  hide: string | null;
  screen: string;
  run: string | null;
  l: number | null;
  h: number | null;
  i: number | null;
  j: number | null;
  step: string;
  /** A kind of attention, such as "cross", of which the first one is shown unless `l` is chosen. */
  kind: string | null;
  /** The card of the landing that is being read, and its caption. */
  card: string | null;
  at: number | null;
  /** 1 shows the pieces of words. */
  pieces: number;
  /** Features of random vectors on the screen "variance", and of encodings on "positions". */
  d: number;
  /** The position encoding that is shown without a model. */
  encoding: string;
  temperature: number;
  top_k: number;
  top_p: number;
  /** What-if: the changes of the definition, as the API takes them. */
  edits: string | null;
  word: number | null;
  la: number | null;
  a: number | null;
  lb: number | null;
  b: number | null;
  alpha: number;
  x: number | null;
  y: number | null;
  z: number | null;
  of: string;
  how: string;
  /** Of the map's colours: "root", "log" or "linear"; null follows the length of the text. */
  scale: string | null;
  lim: string | null;
  palette: string;
}

/** Change some fields of the state; `step` false replaces the entry of the browser's history instead of adding one. */
type Go = (change: Partial<State>, step?: boolean) => void;

/** Where the state is kept. */
interface StateStore {
  read(): State;
  write(state: State, step: boolean): void;
  listen(changed: (state: State) => void): () => void;
}

type Query = Record<string, string | number | null | undefined>;

interface Bytes {
  buffer: ArrayBuffer;
  exact: boolean;
  samples: number;
}

/** How the page reaches the API: over HTTP, through a notebook's kernel, or inside an exported file. */
interface Transport {
  /** Whether a new sentence can be run. */
  canRun: boolean;
  ask(path: string, query?: Query, signal?: AbortSignal): Promise<any>;
  bytes(path: string, query?: Query, signal?: AbortSignal): Promise<Bytes>;
  /** All answers about one head, in one file. */
  file?(run: Run, place: Query, format: string): Promise<Blob>;
  send?(path: string, body: object): Promise<any>;
}

/** What every screen is given. */
interface ScreenProps {
  run: Run;
  attention: Attention;
  state: State & { l: number; h: number };
  go: Go;
  answers: import("./answers.js").Answers;
  transport: Transport;
  theme: Theme;
  root: HTMLElement;
  sharpest: Sharpest | null;
  start: Start | null;
}

/** The centre of the map in cells, and its zoom: a cell is 2^(z - max_zoom) pixels wide. */
interface View {
  x: number;
  y: number;
  z: number;
}

/** Where on the canvas the matrix is drawn, in pixels of the page. */
interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

interface TilePlace {
  z: number;
  x: number;
  y: number;
}

/** The parameters of a tile's request. */
interface MapQuery {
  l: number;
  h: number;
  how: string;
}

/** A tile or track in the cache. `picture` is the tile painted with the colour table called `tableName`. */
interface Tile {
  values: Uint16Array | Float32Array;
  exact: boolean;
  samples: number;
  effort: number;
  picture?: HTMLCanvasElement;
  tableName?: string;
}

/** How exact the visible tiles are: how many of each kind, and the fewest samples of a pixel. */
interface Quality {
  exact: number;
  sampled: number;
  samples: number;
  missing: number;
  waiting?: number;
}

/** Size of the canvas in pixels of the page, and device pixels per pixel. */
interface CanvasSize {
  width: number;
  height: number;
  dense: number;
}

/** What is drawn on the map's canvas. */
interface MapScene extends CanvasSize {
  view: View;
  info: MapInfo;
  box: Box;
  tiles: import("./screens/map/fetching.js").TileCache;
  tables: import("./screens/map/colouring.js").ColourTables;
  state: State;
  query: MapQuery;
  cursor: { i: number; j: number } | null;
  token(axis: Axis, position: number): string;
  weight(i: number, j: number): number | null;
  colourAt(t: number): Colour;
}

/** A scene with the theme's colours and fonts, and the pattern for masked cells. */
interface PaintedScene extends MapScene {
  colours: Record<string, string>;
  hatch: CanvasPattern;
}

/** A trace with everything: a step that needs the stream, values or context is only taken if the trace has them. */
interface FullTrace extends Trace {
  stream: { before: number[]; after: number[] };
  value: number[][];
  context: number[];
}

/** What the stage and the explanation of a step are given. `j` and `pick` are indices into `row.keys`. */
interface StepProps {
  usual: Record<string, boolean>;
  labels: Record<string, string>;
  trace: FullTrace;
  row: TraceRow;
  attention: Attention;
  step: string;
  i: number;
  j: number;
  /** What is pointed at: a feature or position, or on Q K V which vector and where in it. */
  m: any;
  point(m: any): void;
  theme: Theme;
  words: TokenRange;
  /** The place of the query in `words`. */
  place: number;
  run: Run;
  answers: import("./answers.js").Answers;
  cells: any;
  pick(at: number): void;
}
