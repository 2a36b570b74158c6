"""Fixtures of the explorer's tests: sentences on a translator that has learnt them, and recordings of any length."""

import json
from functools import cache

import torch

import telescope as ts
from support import writers
from telescope.explorer.api import Api
from telescope.explorer.library import Library
from telescope.recording import Recording
from telescope.recording.attention_call import AttentionCall, KeepOptions

SENTENCES = (writers.NOTES, "Good morning.", "How are you?")

# token texts that would be markup, script, or direction, if anybody took them for it
HOSTILE = (
    "</script><script>window.pwned=1</script>",
    '"><img src=x onerror=window.pwned=1>',
    "<svg/onload=window.pwned=1>",
    "<!--<script>",
    "]]>",
    "&lt;b&gt;",
    "\u2028\u2029",
    "\u202edlrow\u202c",
    "\0\x1b[31m",
    "javascript:window.pwned=1",
    "${window.pwned=1}",
    "';window.pwned=1//",
    "\ud800",
)


@cache
def api():
    return Api(Library({"learnt": writers.learnt(), "gpt": writers.gpt(max_positions=64)}))


def got(api, path, **parameters):
    """Return the body of an answer; fail on an error."""
    answer = api.answer("GET", path, {name: str(value) for name, value in parameters.items()})
    assert answer.status == 200, answer.body
    return json.loads(answer.body) if answer.kind == "application/json" else answer


def read(api, text, **more):
    answer = api.answer("POST", "/runs", {}, json.dumps({"text": text, **more}).encode())
    assert answer.status == 201, answer.body
    return json.loads(answer.body)


def recorded(n, *, heads=2, d=16, batch=1, attention=ts.Attention(mask=ts.causal), keep="queries-keys", tokens=None):
    """Return a recording of one attention over n tokens, without a model. Neighbouring tokens are similar, so that maps
    have a shape."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, batch, heads, n, d)
    texts = tokens or [chr(97 + i) * 3 for i in range(26)]
    recording = Recording("Made", ["blocks.0.self"], keep, KeepOptions(), lambda ids: "".join(texts[i] for i in ids))
    ids = (torch.arange(n) % len(texts)).expand(batch, n)
    recording._record("blocks.0.self", AttentionCall(q, k, v, attention, tuple(range(heads)), 0.0, query_ids=ids))
    return recording


def serving(recording, title="run"):
    library = Library({})
    return Api(library), library.add(recording, title, "rev").name
