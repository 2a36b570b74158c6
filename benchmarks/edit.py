"""edit: read a long text with a model of transformers, plainly and edited; the peers do the same by
hand.

"hide" hides a segment of keys from all later queries in every layer. The peers are transformers'
own mask, a dense tensor that is added to the scores, and eager attention with a hook that changes
its weights. The weights of the model are random, since nothing here depends on them. Times are of
the whole model, memory is beside its weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import telescope as ts

from .measure import Row, race
from .watch import _model, _read, _text, gpt2, qwen2
from .watch import about as about

SENTENCE = "The man saw the astronomer with a telescope"


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    if device.type == "cuda":
        length = 1_024 if quick else 32_768
        yield from _compared(
            "qwen2", qwen2(quick), length, 100 if quick else 1_000, device, torch.bfloat16
        )
        return
    length = 256 if quick else 4_096
    yield from _compared("gpt2", gpt2(quick), length, length // 8, device, torch.float32)
    yield from _sentence()


def _compared(
    name: str,
    options: dict[str, Any],
    length: int,
    hidden: int,
    device: torch.device,
    dtype: torch.dtype,
) -> list[Row]:
    model, eager = (_model(name, options, how, device, dtype) for how in ("sdpa", "eager"))
    ids = _text(length, device)
    first = length // 4
    keys = range(first, first + hidden)
    later = slice(first + hidden, None)
    heads = model.config.num_attention_heads
    runners: dict[str, Callable[[], object]] = {
        "sdpa": partial(_read, model, ids),
        "mute, 2 heads of a layer": partial(_edited, model, ids, ts.mute(heads=[0, heads - 1])),
        f"hide {hidden:,} keys": partial(_edited, model, ids, ts.hide(keys, later)),
        "hide, from all queries": partial(_edited, model, ids, ts.hide(keys)),
        "hide, in one head": partial(_edited, model, ids, ts.hide(keys, later, heads=0)),
        "boost the same keys": partial(_edited, model, ids, ts.boost(keys, by=4.0, queries=later)),
        "redefine the scale": partial(_edited, model, ids, ts.redefine(None, _sharper)),
        "peer: dense mask": partial(_by_dense_mask, model, ids, keys, dtype),
        "peer: eager with a hook": partial(_by_eager_hook, eager, ids, keys),
    }
    rows = race(f"{name}, n = {length:,}", runners, device, rounds=3 if device.type == "cpu" else 7)
    return [_beside(row, rows[0]) for row in rows]


def _edited(model: Any, ids: Tensor, *edits: Any) -> Any:
    with ts.edit(model, *edits):
        return _read(model, ids)


def _sharper(attention: ts.Attention) -> ts.Attention:
    return replace(attention, scale=0.1)


def _by_dense_mask(model: Any, ids: Tensor, keys: range, dtype: torch.dtype) -> Any:
    """Pass the model a mask (1, 1, n, n) that is added to the scores."""
    n = ids.shape[1]
    mask = torch.full((n, n), torch.finfo(dtype).min, dtype=dtype, device=ids.device).triu_(1)
    mask[keys.stop :, keys.start : keys.stop] = torch.finfo(dtype).min
    return _read(model, ids, attention_mask=mask[None, None])


def _by_eager_hook(model: Any, ids: Tensor, keys: range) -> Any:
    """Change the weights of eager attention: hidden keys to zero, and every row divided by its
    sum.
    """
    import sys

    scope = vars(sys.modules[type(model).__module__])
    own = scope["eager_attention_forward"]

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> Any:
        _, weights = own(module, query, key, value, mask, **options)
        weights[:, :, keys.stop :, keys.start : keys.stop] = 0.0
        weights = weights / weights.sum(-1, keepdim=True)
        shared = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return (weights @ shared).transpose(1, 2).contiguous(), weights

    scope["eager_attention_forward"] = attend
    try:
        return _read(model, ids)
    finally:
        scope["eager_attention_forward"] = own


def _sentence() -> Iterator[Row]:
    """Yield the time of one sentence on the shipped translator, plain and with one edit."""
    from telescope.tasks.writing import do_not_split, rewrite

    model = ts.load("translator-en-de", dtype=torch.float32)
    edits = {
        "as it is": [],
        "mute a cross head": [ts.mute("decoder.1.cross", 2)],
        "hide a word": [ts.hide("telescope")],
        "both, and watched": [ts.mute("decoder.1.cross", 2), ts.hide("telescope")],
    }
    for name, own in edits.items():

        def once(name: str = name, own: list[Any] = own) -> None:
            with ts.edit(model, *own):
                if name.endswith("watched"):
                    with ts.watch(model, keep="steps"):
                        rewrite(model, [SENTENCE], do_not_split)
                else:
                    rewrite(model, [SENTENCE], do_not_split)

        once()
        times = []
        for _ in range(7):
            start = perf_counter()
            once()
            times.append(perf_counter() - start)
        yield Row("translator, one sentence", name, 1e3 * sorted(times)[3])


def _beside(row: Row, plain: Row) -> Row:
    if row.ms is None or plain.ms is None or row.mib is None or plain.mib is None:
        return row
    return replace(row, note=f"{row.ms / plain.ms:.2f} x, memory {row.mib / plain.mib:.2f} x")
