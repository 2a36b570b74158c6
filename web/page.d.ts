/** Types that several files of the page share: nothing of this file is in the bundle. */

/** Red, green and blue, 0 to 255, and opacity if it is not 255. */
type Colour = number[];
type Theme = "light" | "dark";
type Axis = "q" | "k";

/**
 * The steps of a trace as numbers, by the names of the walk: "mask" and "softmax" for "masked" and
 * "weights".
 */
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

/**
 * An answer while it is fetched: `value` is the last one that arrived, `fresh` whether it belongs
 * to this request.
 */
interface Fetched<T = any> {
  value: T | null;
  error: Error | null;
  slow: boolean;
  fresh?: boolean;
}

/**
 * A field of the state: its name in the page's address, its value at first, and whether it is reset
 * with the run.
 */
interface Field<T> {
  address: string;
  initial: T;
  isNumber: boolean;
  perRun: boolean;
}

interface NumberField {
  (address: string): Field<number | null>;
  (address: string, initial: number): Field<number>;
}

interface TextField {
  (address: string): Field<string | null>;
  (address: string, initial: string): Field<string>;
}

type SharedFields = typeof import("./state/fields.js").SHARED;
type PickShared = <Name extends keyof SharedFields>(...names: Name[]) => Pick<SharedFields, Name>;
type Values<Fields> = {
  [Name in keyof Fields]: Fields[Name] extends Field<infer T> ? T : never;
};

/** The fields of a screen that no other has. */
type OwnValues<Fields> = Values<Omit<Fields, keyof SharedFields>>;

type Screens = typeof import("./screens/index.js").SCREENS;
type ScreenName = keyof Screens;
type AtlasFields = typeof import("./screens/atlas/index.jsx").fields;

/** What screens share. */
type SharedState = Values<SharedFields> & {
  run: string | null;
  screen: ScreenName;
};

/**
 * A group for each screen, and one for the atlas that is shown instead of a run if it has a name.
 */
type Groups = { [Name in ScreenName]: OwnValues<Screens[Name]["fields"]> } & {
  atlas: { name: string | null } & OwnValues<AtlasFields>;
};

/** The page's state, as its address holds it; null has not been chosen. */
type State = SharedState & Groups;

type StateChange = Partial<SharedState> & { [Name in keyof Groups]?: Partial<Groups[Name]> };

/**
 * Change some fields of the state; `step` false replaces the entry of the browser's history instead
 * of adding one.
 */
type Go = (change: StateChange, step?: boolean) => void;

/** Open another run, and forget what was chosen in this one. */
type OpenRun = (run: string, change?: StateChange) => void;

/** What a screen exports, by which the frame shows it. */
interface ScreenModule {
  /** The text of its tab. */
  title: string;
  /** What it shows, in half a sentence: for those who point at its tab. */
  shows: string;
  /** The field of an attention's `has` that it needs to show that attention; null needs none. */
  needs: string | null;
  /**
   * Its part of the page's address, in this order. Those that are not shared are its group of the
   * state.
   */
  fields: Record<string, Field<any>>;
  view(props: ScreenProps): any;
  /** Whether its tab is offered; without this, it always is. */
  isOffered?(run: Run | null): boolean;
  /** What it is about, if not about one head. */
  subject?: "layer" | "model" | "nothing";
  /**
   * Where it begins: with the head and query that the API suggests, with that query alone, or with
   * the sharpest attention between two texts. Without this, with the first attention.
   */
  begins?: "start" | "query" | "sharpest";
  /** Whether it can show words or their pieces. */
  splitsWords?: boolean;
}

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

/** A lesson in a file: the sentences whose answers are recorded, and the commands for others. */
interface Handout {
  lesson: string;
  recorded: { text: string; run: string; model: string }[];
  commands: string[];
}

/**
 * How the page reaches the API: over HTTP, through a notebook's kernel, or inside an exported file.
 */
interface Transport {
  /** Whether a new sentence can be run. */
  canRun: boolean;
  ask(path: string, query?: Query, signal?: AbortSignal): Promise<any>;
  bytes(path: string, query?: Query, signal?: AbortSignal): Promise<Bytes>;
  /** All answers about one head, in one file. */
  file?(run: Run, place: Query, format: string): Promise<Blob>;
  send?(path: string, body: object): Promise<any>;
  /** Keep what makes the sentence of an address, for a server that does not know its run. */
  remember?(state: State): void;
  /** A lesson as one file. */
  lesson?(name: string): Promise<Blob>;
  /** What this file is, if it is a handout. */
  handout?: Handout;
}

/** The attention and head that a screen shows. */
interface Shown {
  /** All attentions that the screen can show. */
  able: Attention[];
  attention: Attention | undefined;
  h: number;
  /** Whether no suggestion that is still on its way can change the choice. */
  isSettled: boolean;
}

/** What every part of the frame is given. */
type FrameProps = Pick<
  ScreenProps,
  "go" | "openRun" | "answers" | "transport" | "theme" | "root"
> & { state: State; shown: Shown | null };

/** What every screen is given. */
interface ScreenProps {
  run: Run;
  attention: Attention;
  state: State & { layer: number; head: number };
  go: Go;
  openRun: OpenRun;
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

/**
 * A tile or track in the cache. `picture` is the tile painted with the colour table called
 * `tableName`.
 */
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

/** What is known of a map before its tiles, of /runs/{run}/map or of a text's minimap. */
type MapInfo = Pick<MapAnswer, "n_q" | "n_k" | "tile" | "max_zoom" | "how"> &
  Partial<Pick<MapAnswer, "top">>;

/** A weight under the pointer: the answer to /runs/{run}/cell, or the error. */
interface Cell extends Partial<CellAnswer> {
  i: number;
  j: number;
  error?: Error;
}

/** What is drawn on the map's canvas. */

/** What is drawn on the map's canvas. */
interface MapScene extends CanvasSize {
  view: View;
  info: MapInfo;
  box: Box;
  tiles: import("./screens/map/fetching.js").TileCache;
  tables: import("./screens/map/colouring.js").ColourTables;
  chosen: State["map"];
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

/**
 * A trace with everything: a step that needs the stream, values or context is only taken if the
 * trace has them.
 */
interface FullTrace extends Trace {
  stream: { before: number[]; after: number[] };
  value: number[][];
  context: number[];
}

/**
 * What the stage and the explanation of a step are given. `j` and `pick` are indices into
 * `row.keys`.
 */
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
  /** Why the score of the chosen key is what it is; null where it cannot be asked. */
  why: { open: boolean; toggle(): void } | null;
}
