"""`watch`: look on while a model runs, by PyTorch's own forward hooks, and leave it as it was."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from ..engines import autocast
from ..layers import AddNorm, Attend
from ..words import hint
from .kept import KEEP, Call, MapSize, Steps, Summaries
from .names import Layers, chosen, name_of
from .ran import Ran
from .recording import Recording


@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: Layers = None,
    heads: int | Sequence[int] | None = None,
    keep: str = "summaries",
    top: int | None = None,
    map: MapSize | None = None,
) -> Iterator[Recording]:
    """with ts.watch(model, keep="steps") as recording: model(...); then recording["decoder.0.cross"].trace().

    layers    which attentions: names, patterns such as "encoder.*", or numbers of layers; None is all
    heads     which heads, by number; None is all
    keep      "summaries": the numbers of a survey, computed while the model runs, in memory that grows with n
              "queries-keys": queries and keys, for rows, maps and any survey afterwards
              "steps": values too, for traces, and the residual stream before and after each attention
    top, map  of "summaries": how many weights of each query to keep, and a map of at most (rows, cols)

    The model computes what it does unwatched, bit by bit, and is as it was when the block is left. What is kept is a
    copy without gradients. Decoding token by token is one call that grows. Other threads are not watched.
    """
    kind = _kind(keep, top, map)
    attends = _attends(model)
    names, numbers = chosen(list(attends), layers), _numbers(heads)
    recording = Recording(f'{type(model).__name__}, keep="{keep}"', names, kind)
    eye = Eye(recording, numbers)
    with ExitStack() as hooks:
        for name in names:
            hook = partial(eye.attended, name=name)
            hooks.callback(attends[name].register_forward_hook(hook, with_kwargs=True).remove)
        for module in model.modules() if keep == Steps.keep else ():
            if isinstance(module, AddNorm):
                hooks.callback(module.register_forward_pre_hook(eye.entered, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(eye.left, always_call=True).remove)
        yield recording


class Eye:
    """What the hooks call. Attention runs within an AddNorm's forward, so that is where its residual stream is."""

    def __init__(self, recording: Recording, heads: tuple[int, ...] | None) -> None:
        self.recording, self.heads, self.thread = recording, heads, get_ident()
        self.around: list[tuple[nn.Module, Tensor, list[Steps]]] = []  # AddNorms at work, what came in, who ran within

    def attended(self, module: Attend, args: Any, kwargs: Any, context: Tensor, *, name: str) -> None:
        if not self._looks():
            return
        given = dict(zip(("queries", "keys", "values", "attention"), args, strict=False)) | kwargs
        queries, keys, values = autocast.cast(given["queries"], given["keys"], given["values"])
        heads, dropout = queries.shape[1], module.dropout if module.training else 0.0
        if self.heads is not None and max(self.heads) >= heads:
            raise ValueError(f'heads={[*self.heads]}: "{name}" has {heads}, counted from 0')
        with torch.inference_mode(False), torch.no_grad(), autocast.off(queries.device):
            ran = Ran(queries, keys, values, given["attention"], tuple(range(heads)), dropout).of_written()
            call = self.recording.record(name, ran if self.heads is None else ran.of_heads(self.heads))
        if self.around and isinstance(call, Steps) and call not in self.around[-1][2]:
            self.around[-1][2].append(call)

    def entered(self, module: AddNorm, args: Any, kwargs: Any) -> None:
        if self._looks():
            self.around.append((module, args[0] if args else kwargs["x"], []))

    def left(self, module: AddNorm, args: Any, after: Tensor | None) -> None:
        """Also after an exception, when there is nothing to keep."""
        if not self._looks() or not self.around or self.around[-1][0] is not module:
            return
        _, before, calls = self.around.pop()
        if after is not None:
            with torch.inference_mode(False), torch.no_grad():
                for call in calls:
                    call.stood_between(before, after)

    def _looks(self) -> bool:
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "watch sees nothing of what torch.compile makes; inside the block, call what is not compiled"
            )
        return get_ident() == self.thread


def _attends(model: nn.Module) -> dict[str, Attend]:
    """The model's attentions by name."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch takes a model, a torch.nn.Module, not {type(model).__name__}")
    attends: dict[str, Attend] = {}
    for path, module in model.named_modules():
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            what = f'its part "{path}"' if path else type(model).__name__
            raise ValueError(
                f"{what} is compiled, and compiled code runs past every hook; watch the model as it was before "
                "torch.compile, and call that one"
            )
        if isinstance(module, Attend):
            name = name_of(path)
            attends[name if name not in attends else path] = module
    if not attends:
        raise ValueError(
            f"{type(model).__name__} holds no attention of ours: watch looks at telescope.layers.Attend, "
            "which every attention layer of telescope.layers has"
        )
    return attends


def _numbers(heads: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if heads is None:
        return None
    numbers = tuple(heads) if isinstance(heads, Iterable) else (heads,)
    if not numbers or not all(isinstance(n, int) and n >= 0 for n in numbers) or len(set(numbers)) < len(numbers):
        raise ValueError(f"heads={heads!r} are not numbers of heads; they count from 0, each once, and None is all")
    return numbers


def _kind(keep: str, top: int | None, map: MapSize | None) -> Callable[[str, Ran], Call]:
    if keep not in KEEP:
        raise ValueError(f'there is no keep="{keep}"; {hint(str(keep), KEEP)}')
    options: dict[str, Any] = {name: value for name, value in (("top", top), ("map", map)) if value is not None}
    if options and keep != Summaries.keep:
        asked = ", ".join(f"{name}={value}" for name, value in options.items())
        raise ValueError(f'{asked} is of keep="summaries"; with keep="{keep}" ask it of survey({asked}) afterwards')
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 0):
        raise ValueError(f"top={top!r} is how many weights of each query are kept; it takes 0 or more")
    if map is not None and not (
        isinstance(map, tuple) and len(map) == 2 and all(isinstance(n, int) and n > 0 for n in map)
    ):
        raise ValueError(f"map={map!r} is not a size; it takes (rows, cols), such as map=(128, 128)")
    return partial(Summaries, **options) if keep == Summaries.keep else KEEP[keep]
