/** A view as a file: a drawing, a picture, or a page of its own. */
import { themed } from "../parts/shell.js";
import { drawn } from "./svg.js";

export function saved(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export const asSvg = (root) => drawn(root.querySelector("main"), themed(root, "paper"));

/** The drawing, painted at twice its size. */
export async function asPng(root) {
  const { text, width, height } = asSvg(root);
  const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    const twice = Math.min(2, 8192 / Math.max(width, height));
    [canvas.width, canvas.height] = [width * twice, height * twice];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(url);
  }
}
