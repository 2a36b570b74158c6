/** Save the current view as a file: an SVG drawing or a PNG picture. */
import { themeColour } from "../parts/answered.jsx";
import { toSvg } from "./svg.js";

/**
 * Offer a file for download.
 * @param {Blob} blob
 * @param {string} name
 */
export function saveFile(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * Return the screen as an SVG drawing with a caption, and its size.
 * @type {(root: HTMLElement, caption: string) => {text: string, width: number, height: number}}
 */
export const asSvg = (root, caption) =>
  toSvg(
    /** @type {HTMLElement} */ (root.querySelector("main")),
    themeColour(root, "paper"),
    caption,
    themeColour(root, "soft"),
  );

/**
 * Return the drawing as a PNG at twice its size, or less where a side would exceed 8,192 pixels.
 * @param {HTMLElement} root
 * @param {string} caption
 * @returns {Promise<Blob>}
 */
export async function asPng(root, caption) {
  const { text, width, height } = asSvg(root, caption);
  const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    const scale = Math.min(2, 8192 / Math.max(width, height));
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) =>
      canvas.toBlob(/** @type {BlobCallback} */ (resolve), "image/png"),
    );
  } finally {
    URL.revokeObjectURL(url);
  }
}
