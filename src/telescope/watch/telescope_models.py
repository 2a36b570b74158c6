"""Looking on at our own models, by PyTorch's own forward hooks."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..attention import Attention
from ..engines import sdpa, torch_modes
from ..layers import AddNorm, Attend
from ..recording.attention_call import AttentionCall
from ..recording.kept import StepsCall
from ..recording.names import Parts, name_of
from .observer import ModuleHook, Observer
from .sdpa_lse import SdpaWithLse


def attentions(parts: Parts) -> dict[str, Attend]:
    """The model's attentions by name."""
    attends: dict[str, Attend] = {}
    for path, module in parts.items():
        if isinstance(module, Attend):
            name = name_of(path)
            attends[name if name not in attends else path] = module
    return attends


def embeddings(parts: Parts) -> Iterable[nn.Module]:
    """Where tokens come in."""
    named = ("embedding", "target_embedding")
    return [module for path, module in parts.items() if path.rpartition(".")[2] in named]


@contextmanager
def looking(parts: Parts, attends: Mapping[str, Attend], eye: Observer) -> Iterator[None]:
    """The hooks are there while the block runs. Threads that share a model see their own; one looks at it once."""
    seer = ModelHooks(eye)
    with ExitStack() as hooks:
        hooks.callback(seer.leave)
        if any((id(part), eye.thread) in _watched for part in parts.values()):
            raise ValueError(f"{type(parts['']).__name__} is being watched already; leave that block first")
        for name, attend in attends.items():
            _watched.add((id(attend), eye.thread))
            hooks.callback(_watched.discard, (id(attend), eye.thread))
            before, after = ModuleHook(seer.attends), ModuleHook(partial(seer.attended, name=name))
            hooks.callback(attend.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(attend.register_forward_hook(after, with_kwargs=True, always_call=True).remove)
        for module in parts.values() if eye.recording.keep == StepsCall.keep else ():
            if isinstance(module, AddNorm):
                hooks.callback(module.register_forward_pre_hook(ModuleHook(seer.entered), with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(ModuleHook(seer.left), always_call=True).remove)
        yield


_watched: set[tuple[int, int]] = set()  # attentions, by their id, and the thread that looks at them


class ModelHooks:
    """What the hooks call. Attention runs within an AddNorm's forward, so that is where its residual stream is."""

    def __init__(self, eye: Observer) -> None:
        self.eye = eye
        self.around: list[
            tuple[nn.Module, Tensor, list[StepsCall]]
        ] = []  # AddNorms at work, what came in, who ran within
        self.fused: SdpaWithLse | None = None  # while an attention is at work
        self.within = ExitStack()

    def attends(self, module: Attend, args: Any, kwargs: Any) -> None:
        """Only the fused engine has an lse to give; another, such as one that is compiled, runs undisturbed."""
        if self.eye.looks() and sdpa.cannot(*_given(*args, **kwargs)[:4]) is None:
            self.fused = SdpaWithLse()
            self.within.enter_context(self.fused)

    def attended(self, module: Attend, args: Any, kwargs: Any, context: Tensor | None, *, name: str) -> None:
        """Also after an exception, when there is nothing to keep."""
        if not self.eye.looks():
            return
        fused = self.leave()
        if context is None:
            return
        queries, keys, values, attention, across = _given(*args, **kwargs)
        queries, keys, values = torch_modes.cast_for_autocast(queries, keys, values)
        heads, dropout = tuple(range(queries.shape[1])), module.dropout if module.training else 0.0
        lse = None if fused is None else fused.lse_of(context)
        call = self.eye.saw(name, AttentionCall(queries, keys, values, attention, heads, dropout, lse, across=across))
        if self.around and isinstance(call, StepsCall) and call not in self.around[-1][2]:
            self.around[-1][2].append(call)

    def leave(self) -> SdpaWithLse | None:
        """An interrupt, of which no hook hears, leaves it to the end of the block."""
        fused, self.fused = self.fused, None
        self.within.close()
        return fused

    def entered(self, module: AddNorm, args: Any, kwargs: Any) -> None:
        if self.eye.looks():
            self.around.append((module, args[0] if args else kwargs["x"], []))

    def left(self, module: AddNorm, args: Any, after: Tensor | None) -> None:
        """Also after an exception, when there is nothing to keep."""
        if not self.eye.looks() or not self.around or self.around[-1][0] is not module:
            return
        _, before, calls = self.around.pop()
        if after is not None:
            with torch_modes.recording_mode(after.device):
                for call in calls:
                    call.stood_between(before, after)


def _given(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, *, across: bool | None = None
) -> tuple[Tensor, Tensor, Tensor, Attention, bool | None]:
    """What Attend was called with, by place or by name."""
    return queries, keys, values, attention, across
