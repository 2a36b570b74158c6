/** Build the page: `npm run build`, or `npm run build -- --outdir=FOLDER`. */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { build } from "esbuild";
import { OPTIONS } from "./bundle.js";

const given = process.argv.find((argument) => argument.startsWith("--outdir="));
const outdir =
  given?.slice("--outdir=".length) ?? join("..", "src", "telescope", "explorer", "page");
const { outputFiles } = await build({
  ...OPTIONS,
  entryPoints: ["explorer.js", "explorer.css", "index.html"],
  outdir,
  minify: true,
  legalComments: "none",
  loader: { ".html": "copy" },
});
for (const { path, text } of outputFiles) await writeFile(path, text);

// The licences of the libraries inside the bundle ask that they are passed on with every copy.
const { dependencies } = JSON.parse(await readFile("package.json", "utf8"));
const notices = [
  "The script of this page contains the libraries named below, under their own licences.",
];
for (const [name, version] of Object.entries(dependencies)) {
  const licence = await readFile(join("node_modules", name, "LICENSE"), "utf8");
  notices.push(`${name} ${version}\n\n${licence.trim()}`);
}
await writeFile(join(outdir, "notices.txt"), `${notices.join(`\n\n${"-".repeat(80)}\n\n`)}\n`);
