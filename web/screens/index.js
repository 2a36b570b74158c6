/** The screens, in the order of their tabs. A new screen is imported and entered here. */
import * as alignment from "./alignment/index.jsx";
import * as geometry from "./geometry/index.jsx";
import * as heads from "./heads/index.jsx";
import * as image from "./image/index.jsx";
import * as map from "./map/index.jsx";
import * as output from "./output.jsx";
import * as positions from "./positions/index.jsx";
import * as sources from "./sources/index.jsx";
import * as variance from "./variance.jsx";
import * as walk from "./walk/index.jsx";

/** Every screen by its name in the page’s address. */
export const SCREENS = {
  walk,
  heads,
  geometry,
  alignment,
  map,
  image,
  sources,
  output,
  variance,
  positions,
};

export const SCREEN_NAMES = /** @type {ScreenName[]} */ (Object.keys(SCREENS));

/** Return what a screen exports. @type {(name: ScreenName) => ScreenModule} */
export const screenOf = (name) => SCREENS[name];
