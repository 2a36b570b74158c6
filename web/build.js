/** Build the page: `npm run build`, or `npm run build -- --outdir=FOLDER`. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { build } from "esbuild";

const given = process.argv.find((argument) => argument.startsWith("--outdir="));
const { outputFiles } = await build({
  entryPoints: ["explorer.js", "explorer.css", "index.html"],
  outdir: given?.slice("--outdir=".length) ?? join("..", "src", "telescope", "explorer", "page"),
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  charset: "utf8",
  loader: { ".html": "copy" },
  write: false,
});
for (const { path, text } of outputFiles) {
  // Line breaks are left only in templates; htm ignores indentation, and line breaks between tags and values.
  const short = text.replace(/\n\s+/g, "\n").replace(/([>}])\n(?=[<$])/g, "$1");
  await writeFile(path, path.endsWith(".js") ? short : text);
}
