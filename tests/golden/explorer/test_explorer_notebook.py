"""The explorer in a notebook: a cell sends requests to the kernel, and gets the answers that a browser gets."""

import json
import re
from html import unescape
from importlib.util import find_spec

import pytest
import torch

import telescope as ts
from support import writers
from support.exploring import HOSTILE, api, got, read, recorded
from telescope.explorer import notebook, show

needs_anywidget = pytest.mark.skipif(find_spec("anywidget") is None, reason="the notebook extra is not installed")


def send_message(widget, monkeypatch, **message):
    sent = []
    monkeypatch.setattr(widget, "send", lambda content, buffers=(): sent.append((content, list(buffers))))
    widget._handle_custom_msg(message, [])
    return sent


@needs_anywidget
def test_a_cell_gets_the_answers_of_the_server(monkeypatch):
    widget = show(writers.learnt(), writers.NOTES)
    start = json.loads(widget.start)
    assert start["screen"] == "walk"
    query = {"l": "2", "h": "1", "i": "3"}
    path = f"runs/{start['run']}/trace"
    ((reply, buffers),) = send_message(widget, monkeypatch, id=7, method="GET", path=path, query=query)
    run = read(api(), writers.NOTES)["run"]
    assert (reply["id"], reply["body"]) == (7, got(api(), f"/runs/{run}/trace", **query))
    assert not buffers
    ((reply, (tile,)),) = send_message(
        widget, monkeypatch, id=8, method="GET", path=f"runs/{start['run']}/tiles/0/0/0", query={"l": "0", "h": "0"}
    )
    assert reply == {"id": 8, "exact": True, "samples": 1.0}
    assert tile == got(api(), f"/runs/{run}/tiles/0/0/0", l=0, h=0).body
    query = {"l": "0", "h": "1", "format": "html"}
    ((reply, (file,)),) = send_message(
        widget, monkeypatch, id=11, method="GET", path=f"runs/{start['run']}/export", query=query
    )
    assert reply["id"] == 11
    assert file.startswith(b"<!doctype html>")
    assert f"/s/{start['run']}/walk?l=0".encode() in file
    ((reply, _),) = send_message(widget, monkeypatch, id=9, method="POST", path="runs", body={"text": "Good morning."})
    assert reply["body"]["written"] == "Guten Morgen."
    ((reply, _),) = send_message(widget, monkeypatch, id=10, method="GET", path="runs/nobody")
    assert reply["error"]["code"] == "unknown-run"
    assert send_message(widget, monkeypatch, nothing=1) == []


@needs_anywidget
def test_a_notebook_without_a_kernel_shows_a_text():
    """An export to HTML shows the text alone, which says how to get more."""
    bundle, *_ = show(writers.learnt(), writers.NOTES)._repr_mimebundle_()
    assert "model_id" in bundle["application/vnd.jupyter.widget-view+json"]
    assert bundle["text/plain"].startswith(f"Telescope: {writers.NOTES}. Run this cell")


@needs_anywidget
def test_cells_are_independent(monkeypatch):
    cells = [show(recorded(n)) for n in (5, 9)]
    sizes = []
    for cell in cells:
        ((reply, _),) = send_message(cell, monkeypatch, id=1, method="GET", path="runs")
        sizes.append(reply["body"]["runs"][0]["attentions"][0]["n_q"])
    assert sizes == [5, 9]


@needs_anywidget
def test_show_takes_the_folder_of_a_recording(tmp_path, monkeypatch):
    recorded(5).save(tmp_path / "five.telescope")
    widget = show(tmp_path / "five.telescope", screen="map")
    assert json.loads(widget.start) == {"run": "five", "screen": "map", "l": 0}


@needs_anywidget
def test_a_cell_of_an_example_a_trace_and_the_name_of_a_model(tmp_path):
    """Each begins at a run that answers; no cell is empty."""
    writers.learnt().save(tmp_path / "learnt")
    journey = torch.eye(3)[None, None]
    cells = [
        show("bank", screen="geometry"),
        show(ts.trace(journey, journey, journey)),
        show(str(tmp_path / "learnt"), "Good morning."),
    ]
    runs = [json.loads(cell.start)["run"] for cell in cells]
    assert runs[:2] == ["example-bank", "trace"]
    assert runs[2].startswith("s")
    assert all("text/plain" in cell._repr_mimebundle_()[0] for cell in cells)


def test_without_anywidget_show_returns_a_static_page(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(notebook, "import_module", missing)
    still = show(recorded(len(HOSTILE), keep="steps", tokens=list(HOSTILE)))
    html = still._repr_html_()
    assert html.startswith('<iframe sandbox="allow-scripts" srcdoc="')
    assert html.count("<") == 2  # the frame and its end; what is in it is escaped once more
    inside = unescape(re.search(r'srcdoc="([^"]*)"', html)[1])
    assert inside.count("<script") == 3  # answers, program, notices
    assert "telescope-answers" in inside


@pytest.mark.parametrize(
    ("what", "part"),
    [
        (lambda: show(writers.learnt()), "a text to read"),
        (lambda: show(writers.learnt(), " "), "no word"),
        (lambda: show(recorded(5), "text"), "has its text"),
        (lambda: show(3), "not int"),
        (lambda: show(recorded(5), layer=-9), "there is no layer -9"),
        (lambda: show("nowhere"), "does not exist"),
        (lambda: show(torch.nn.Linear(1, 1), "text"), "has its text"),
        (lambda: show("nowhere", "text"), "nowhere"),
    ],
)
def test_arguments_that_cannot_be_shown(what, part):
    with pytest.raises((TypeError, ValueError), match=part):
        what()


@needs_anywidget
def test_a_recording_that_still_grows(monkeypatch):
    model = writers.gpt()
    with ts.watch(model, keep="steps") as recording, torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    widget = show(recording)
    ((reply, _),) = send_message(
        widget, monkeypatch, id=1, method="GET", path="runs/GPT/tokens", query={"l": "0", "axis": "k"}
    )
    shown = [token.removeprefix("·").replace("␣", " ") for token in reply["body"]["tokens"]]
    assert shown == [model.tokenizer.decode([i]) for i in (1, 2, 3)]
