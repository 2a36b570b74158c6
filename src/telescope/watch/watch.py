"""`watch`: look on while a model runs, and leave it as it was."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, SupportsIndex

from torch import nn

from ..recording import attention_call
from ..recording.kept import KEEP, TOP, KeepOptions, MapSize, SummariesCall
from ..recording.names import Layers, Parts, chosen, left_out, not_watched, parts_of
from ..recording.recording import Recording
from ..recording.storage import store_of
from ..words import hint, whole_number
from . import huggingface, telescope_models
from .observer import Observer


@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: Layers = None,
    heads: SupportsIndex | Sequence[SupportsIndex] | None = None,
    queries: int | Sequence[int] | slice | None = None,
    keep: str = "summaries",
    top: int | None = None,
    map: MapSize | None = None,
    store: str = "device",
    tokenizer: Any = None,
) -> Iterator[Recording]:
    """with ts.watch(model) as recording: model(...); then recording["model.layers.11"].head(4).top.

    model     one of ours, or any of Hugging Face's that goes through its attention interface
    layers    which attentions: names, patterns such as "encoder.*", or numbers of layers; None is all
    heads     which heads, by number; None is all
    queries   which queries, by their place; -1 is the last one read, and then every one written; None is all
    keep      "summaries": the numbers of a survey, computed while the model runs, in memory that grows with n
              "queries-keys": queries and keys, for rows, maps and any survey afterwards
              "steps": values too, for traces; of our models also the residual stream around each attention
    top, map  of "summaries": how many weights of each query to keep, and a map of at most (rows, cols)
    store     where it is kept: on the "device" where the model runs, in "ram", or on "disk"
    tokenizer what turns ids into text, by its decode; of our models their own

    The model computes what it does unwatched, bit by bit, and is as it was when the block is left. What is kept is a
    copy without gradients. Padding asks nothing: what is received, and heads, are those of the sentence alone, and its
    rows are empty, entropy 0 and top key -1; only trace() shows them as they ran. Writing token by token is one call
    that grows. Other threads are not watched. A layer that several places of a model share is recorded once for each
    pass through it: its name, then its name.2, its name.3. Attentions that go past what can be watched are named in a
    warning.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch takes a model, a torch.nn.Module, not {type(model).__name__}")
    how = _how(keep, top, map, attention_call.chosen(queries), store)
    parts = parts_of(model)
    _must_not_be_compiled(parts)
    side = huggingface if huggingface.owns(parts) else telescope_models
    attentions: dict[str, Any] = side.attentions(parts)
    if not attentions:
        raise ValueError(
            f"{type(model).__name__} holds no attention of ours: watch looks at telescope.layers.Attend, which every "
            "attention layer of telescope.layers has, and at models of transformers"
        )
    overlooked = left_out(parts, attentions.values())
    names, numbers = chosen(list(attentions), layers, overlooked), _numbers(heads)
    if overlooked and layers is None:
        warnings.warn(f"{type(model).__name__}: {not_watched(overlooked)}", stacklevel=3)
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    decode = getattr(tokenizer, "decode", None)
    token_name = getattr(tokenizer, "id_to_token", None) or getattr(tokenizer, "convert_ids_to_tokens", None)
    recording = Recording(type(model).__name__, names, keep, how, decode, overlooked, token_name)
    eye = Observer(recording, numbers)
    with eye.reading(side.embeddings(parts)), side.looking(parts, {name: attentions[name] for name in names}, eye):
        try:
            yield recording
        finally:
            how.together.wait()
        how.together.now()


def _must_not_be_compiled(parts: Parts) -> None:
    for path, module in parts.items():
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            what = f'its part "{path}"' if path else type(module).__name__
            raise ValueError(
                f"{what} is compiled, and compiled code runs past every hook; watch the model as it was before "
                "torch.compile, and call that one"
            )


def _numbers(heads: SupportsIndex | Sequence[SupportsIndex] | None) -> tuple[int, ...] | None:
    if heads is None:
        return None
    given = tuple(heads) if isinstance(heads, Iterable) else (heads,)
    try:
        numbers = tuple(whole_number("heads", number) for number in given)
    except TypeError:
        numbers = ()
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise ValueError(f"heads={heads!r} are not numbers of heads; they count from 0, each once, and None is all")
    return numbers


def _how(keep: str, top: int | None, map: MapSize | None, queries: attention_call.Chosen, store: str) -> KeepOptions:
    if keep not in KEEP:
        raise ValueError(f'there is no keep="{keep}"; {hint(str(keep), KEEP)}')
    options: dict[str, Any] = {name: value for name, value in (("top", top), ("map", map)) if value is not None}
    if options and keep != SummariesCall.keep:
        asked = ", ".join(f"{name}={value}" for name, value in options.items())
        raise ValueError(f'{asked} is of keep="summaries"; with keep="{keep}" ask it of survey({asked}) afterwards')
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 0):
        raise ValueError(f"top={top!r} is how many weights of each query are kept; it takes 0 or more")
    if map is not None and not (
        isinstance(map, tuple) and len(map) == 2 and all(isinstance(n, int) and n > 0 for n in map)
    ):
        raise ValueError(f"map={map!r} is not a size; it takes (rows, cols), such as map=(128, 128)")
    return KeepOptions(TOP if top is None else top, map, queries, store_of(store))
