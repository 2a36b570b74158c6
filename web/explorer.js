/** The way in: a page of the server, a file that was exported, or a cell of a notebook. */
import { mount } from "./app.js";
import { inAddress, inHash, inMemory } from "./state.js";
import { comm } from "./transport/comm.js";
import { http } from "./transport/http.js";
import { inline } from "./transport/inline.js";

const page = globalThis.document?.getElementById("telescope");
const saved = globalThis.document?.getElementById("telescope-answers");

if (page && saved) {
  const { start, answers } = JSON.parse(saved.textContent);
  mount(page, inline(answers), inHash(start));
} else if (page) {
  mount(page, http, inAddress);
}

/** Of a notebook's own keys only these: others would cut, paste and delete the cell that one looks at. */
const stays = (event) => event.ctrlKey || event.metaKey || event.key === "Escape" || (event.shiftKey && event.key === "Enter") || event.stopPropagation();

export default {
  render({ model, el }) {
    const inside = document.createElement("div");
    inside.tabIndex = -1;
    inside.addEventListener("keydown", stays);
    el.append(inside);
    return mount(inside, comm(model), inMemory(JSON.parse(model.get("start") || "{}")));
  },
};
