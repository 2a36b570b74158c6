"""The explorer in a notebook: the same page in a cell, which asks the kernel instead of a server."""

import json
import os
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..models import Model
from ..recording.recording import Recording
from .api import JSON, Api
from .export import exported, page
from .library import Library
from .pages import files
from .requests import Refusal, RequestParams
from .run import Run


def show(
    what: Recording | Model | str | os.PathLike[str],
    text: str | None = None,
    *,
    screen: str = "walk",
    layer: int = 0,
) -> Any:
    """Look at a recording, at one that was saved, or at what a model makes of a text: show(model, "Good morning").

    Without anywidget it is a page that cannot ask further: all about one attention of a short text.
    """
    library = Library({})
    run = _opened(library, what, text)
    start = {"run": run.name, "screen": screen, "l": layer}
    api = Api(library)
    try:
        anywidget: Any = import_module("anywidget")
        traitlets: Any = import_module("traitlets")
    except ImportError:
        return StaticPage(api, run, layer)

    class Explorer(anywidget.AnyWidget):  # type: ignore[misc]
        _esm = files().get("explorer.js", b"export default {}").decode()
        _css = files().get("explorer.css", b"").decode()
        start = traitlets.Unicode("{}").tag(sync=True)

        def __repr__(self) -> str:
            return (
                f'Telescope: {run.title}. Run this cell to look at it; what its "save" makes opens without a notebook.'
            )

    widget = Explorer(start=json.dumps(start))
    widget.on_msg(lambda _, message, buffers: _answered(api, widget, message))
    return widget


class StaticPage:
    """A page with its answers inside, in a frame of its own in which nothing reaches the notebook around it."""

    def __init__(self, api: Api, run: Run, layer: int) -> None:
        self.html = page(exported(api.ask, run, RequestParams({"l": str(layer)}))).decode()

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.html)}" width="100%" height="640" '
            'style="border:0" title="Telescope"></iframe>'
        )


def _opened(library: Library, what: object, text: str | None) -> Run:
    if isinstance(what, Model):
        if text is None:
            raise ValueError('a model needs something to read: show(model, "Good morning")')
        name = type(what).__name__
        library.models[name] = what
        try:
            return library.read(text, name)
        except Refusal as refusal:
            raise ValueError(refusal.message) from None
    if text is not None:
        raise ValueError("a recording has its text already; show(recording) takes nothing else")
    if isinstance(what, Recording):
        return library.add(what, what.model, uuid4().hex)
    if isinstance(what, str | os.PathLike):
        return library.open(Path(what))
    raise TypeError(f"show takes a recording, the folder of one, or a model and a text, not {type(what).__name__}")


def _answered(api: Api, widget: Any, message: Any) -> None:
    """A question has a number; its answer has the same, and what is binary lies beside it."""
    match message:
        case {"id": int(number), "method": str(method), "path": str(path)}:
            query, body = message.get("query") or {}, message.get("body")
        case _:
            return
    made = api.answer(method, f"/{path.lstrip('/')}", query, json.dumps(body).encode())
    if made.kind != JSON:
        samples = float(made.headers.get("X-Samples", 0))  # of a picture; a file has none
        told = {"id": number, "exact": made.headers.get("X-Exact") == "1", "samples": samples}
        widget.send(told, buffers=[made.body])
        return
    said = json.loads(made.body)
    widget.send({"id": number, "error": said["error"]} if made.status >= 400 else {"id": number, "body": said})
