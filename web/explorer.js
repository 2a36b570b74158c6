/** The entry point: a page of the server, an exported file, or a cell of a notebook. */
import { mount } from "./frame/app.jsx";
import { lessonPath } from "./lessons/lessons.js";
import { addressStore, hashStore, memoryStore } from "./state/state.js";
import { kernelTransport } from "./transport/comm.js";
import { handoutTransport } from "./transport/handout.js";
import { httpTransport } from "./transport/http.js";
import { fileTransport } from "./transport/inline.js";
import { remembering } from "./transport/remake.js";
import { withExamples } from "./transport/worked.js";

const page = globalThis.document?.getElementById("telescope");
const saved = globalThis.document?.getElementById("telescope-answers");

if (page && saved) {
  const { start, answers, handout } = JSON.parse(saved.textContent ?? "");
  const transport = handout ? handoutTransport(answers, handout) : fileTransport(answers);
  const store = hashStore(handout ? lessonPath(handout.lesson, handout.recorded[0]?.run) : start);
  mount(page, withExamples(transport), store);
} else if (page) {
  mount(page, withExamples(remembering(httpTransport)), addressStore);
}

/**
 * Keep keys from the notebook, whose shortcuts would cut or delete the cell; only those that leave
 * or run it pass.
 * @param {KeyboardEvent} event
 */
const keepKey = (event) => {
  const passes =
    event.ctrlKey ||
    event.metaKey ||
    event.key === "Escape" ||
    (event.shiftKey && event.key === "Enter");
  if (!passes) event.stopPropagation();
};

export default {
  /** @param {{model: import("./transport/comm.js").WidgetModel, el: HTMLElement}} cell */
  render({ model, el }) {
    const root = document.createElement("div");
    root.tabIndex = -1;
    root.addEventListener("keydown", keepKey);
    el.append(root);
    const store = memoryStore(JSON.parse(model.get("start") || "{}"));
    return mount(root, withExamples(remembering(kernelTransport(model))), store);
  },
};
