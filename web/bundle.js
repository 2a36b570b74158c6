/**
 * How esbuild reads the source: for the page that ships, and for unit tests of modules with JSX.
 */
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

/** @type {import("esbuild").BuildOptions} */
export const OPTIONS = {
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  write: false,
};

/**
 * Import a module of this folder, such as "state.js". Node cannot read the JSX that the module may
 * import.
 * @param {string} path
 */
export async function importBundled(path) {
  const entryPoints = [fileURLToPath(new URL(path, import.meta.url))];
  const { outputFiles } = await build({ ...OPTIONS, entryPoints });
  return import(`data:text/javascript,${encodeURIComponent(outputFiles?.[0].text ?? "")}`);
}
