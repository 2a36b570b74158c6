"""The explorer in a notebook cell: the same page, with the kernel in place of the server."""

import json
import os
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from ..models import Model, load
from ..recording import Recording
from ..traces import Trace
from ..words import check_index
from .answers import Refusal, RequestParams
from .api import JSON, Api
from .example_names import PREFIX
from .export import html_page, page_files
from .exported_run import export_answers
from .library import Library
from .make_run import example_name, run_of_trace
from .run import Run


def show(
    what: Recording | Model | Trace | str | os.PathLike[str],
    text: str | None = None,
    *,
    screen: str = "walk",
    layer: int = 0,
) -> Any:
    """Return the explorer for a notebook cell: of a recording, a trace, an example, or a model that
    reads a text.

    Args:
        what: a `Recording`, the folder of a saved one, a `Trace`, the name of a worked example such
            as "bank", a model with a tokenizer, or its name or folder.
        text: the text that the model reads; only with a model.
        screen: the first screen: "walk", "heads", "geometry", "alignment", "map", "output" or
            "positions".
        layer: the first attention, by its index in the recording, from 0; -1 is the last.

    Returns:
        A widget that asks the kernel for what the reader opens. Without anywidget it returns a
        static page about one attention, for at most 256 tokens. Raises ValueError for a model
        without a text, a recording with one, and a text that the model cannot read, a layer out of
        range, and TypeError for any other `what`.

    Example:
        >>> import torch, telescope as ts
        >>> from telescope.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=16, d_model=8, heads=2, blocks=1))
        >>> with ts.watch(model, keep="steps") as recording:
        ...     logits = model(torch.tensor([[1, 5, 2]]))
        >>> cell = ts.explorer.show(recording, screen="heads")
    """
    # A library of nothing but what was given, without the shipped models.
    library = Library({})
    run = _add_run(library, what, text)
    layer = check_index("layer", layer, len(run.views))
    start = {"run": run.name, "screen": screen, "l": layer}
    api = Api(library)
    # Without anywidget there is no way to the kernel: the page then holds its answers.
    try:
        anywidget: Any = import_module("anywidget")
        traitlets: Any = import_module("traitlets")
    except ImportError:
        return StaticPage(api, run, layer)

    # Made here, since the base class may not be installed.
    class Explorer(anywidget.AnyWidget):  # type: ignore[misc]
        # Without a built page, the widget is empty.
        _esm = page_files().get("explorer.js", b"export default {}").decode()
        _css = page_files().get("explorer.css", b"").decode()
        start = traitlets.Unicode("{}").tag(sync=True)

        def __repr__(self) -> str:
            hint = 'Run this cell to see it; a file from its "save" menu opens without a notebook.'
            return f"Telescope: {run.title}. {hint}"

    widget = Explorer(start=json.dumps(start))
    # The kernel answers the page's requests, as a server would.
    widget.on_msg(lambda _, message, buffers: _reply(api, widget, message))
    return widget


class StaticPage:
    """A page that holds its answers, shown in a sandboxed frame that cannot reach the notebook
    around it.
    """

    def __init__(self, api: Api, run: Run, layer: int) -> None:
        self.html = html_page(
            export_answers(api.ask, run, RequestParams({"l": str(layer)}))
        ).decode()

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.html)}" width="100%" '
            'height="640" '
            'style="border:0" title="Telescope"></iframe>'
        )


def _add_run(library: Library, what: object, text: str | None) -> Run:
    """Add what `show` was given to the library and return its run."""
    # A name with a text is a model; without one it is a recording or an example.
    if text is not None and isinstance(what, str | os.PathLike):
        what = load(what, dtype=torch.float32)
    if isinstance(what, Model):
        if text is None:
            raise ValueError('a model needs a text to read: show(model, "Good morning")')
        name = type(what).__name__
        library.models[name] = what
        try:
            return library.read(text, name)
        except Refusal as refusal:
            raise ValueError(refusal.message) from None
    if text is not None:
        raise ValueError("a recording has its text already; show(recording) takes no text")
    # A random revision: a recording in memory may grow between two calls.
    if isinstance(what, Recording):
        return library.add(what, what.model, uuid4().hex)
    if isinstance(what, Trace):
        run = library.recordings["trace"] = run_of_trace(what)
        return run
    if isinstance(what, str | os.PathLike):
        # A folder comes before an example of the same name.
        if not Path(what).exists() and example_name(f"{PREFIX}{what}") is not None:
            return library.run(f"{PREFIX}{what}")
        return library.open(Path(what))
    kind = type(what).__name__
    raise TypeError(
        f"show takes a recording, the folder of one, a trace, or a model and a text, not {kind}"
    )


def _reply(api: Api, widget: Any, message: Any) -> None:
    """Answer a message of the page. The reply repeats the message's id; binary answers travel in a
    buffer.
    """
    # Messages of any other form are ignored.
    match message:
        case {"id": int(number), "method": str(method), "path": str(path)}:
            query = message.get("query") or {}
            body = message.get("body")
        case _:
            return
    answer = api.answer(method, f"/{path.lstrip('/')}", query, json.dumps(body).encode())
    if answer.kind != JSON:
        samples = float(answer.headers.get("X-Samples", 0))  # an exported file has none
        header = {"id": number, "exact": answer.headers.get("X-Exact") == "1", "samples": samples}
        widget.send(header, buffers=[answer.body])
        return
    contents = json.loads(answer.body)
    # A message has no status: errors have a key of their own.
    key, value = ("error", contents["error"]) if answer.status >= 400 else ("body", contents)
    widget.send({"id": number, key: value})
