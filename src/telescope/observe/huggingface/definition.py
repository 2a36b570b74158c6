"""What a call of an attention function of transformers computes, as a definition of ours.

Each implementation has its own way to say who sees whom: `sdpa` looks back by itself where it is given no mask, `eager`
does what the mask says, `flash` is told of padding and windows, `flex` has a mask function.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from ...attention import Attention, Bias, Mask, causal, everyone, from_additive, from_tensor, window
from ...attention.masks import Documents
from ...engines import autocast
from ..ran import Ran
from .biases import bias_of
from .lazy import LazyMask
from .masks import Told, filled, padded


class Said(NamedTuple):
    """Who sees whom: how many of the keys are there, and how many were before them."""

    mask: Mask
    keys: int
    gone: int = 0
    bias: Bias | None = None


class Reader:
    """Reads calls. What a model hands to all of its layers is looked at once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int, Any]] = {}
        self._biases: dict[int, Bias | None] = {}
        self._last = Attention()
        self.places: dict[tuple[int, int, int], tuple[int, Tensor | None]] = {}
        """Of a config, so many queries and keys: how many keys were before them, and the padding of all. Flash is told
        neither."""

    def ran(
        self,
        implementation: str,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        given: Any,
        options: Mapping[str, Any],
        lse: Tensor | None,
    ) -> Ran:
        queries, keys, values = autocast.cast(*tensors)
        looks_back = options.get("is_causal")
        if looks_back is None:
            looks_back = getattr(module, "is_causal", True)
        who = _WAYS["flash" if "flash" in implementation else implementation]
        said = who(self, module, queries, keys, given, bool(looks_back), options)
        bias = said.bias
        added = options.get("position_bias")
        if added is not None:
            mine = self._once(added, lambda: bias_of(added.detach()[..., : said.keys], self._biases.get(id(module))))
            self._biases[id(module)] = mine
            bias = mine if bias is None else bias
        knows = implementation != "sdpa"  # which refuses these, or, before 5.0, leaves them out
        attention = self._definition(
            options.get("scaling"),
            options.get("softcap") if knows else None,
            options.get("s_aux") if knows else None,
            bias,
            said.mask,
        )
        heads, dropout = tuple(range(queries.shape[1])), float(options.get("dropout") or 0.0)
        if said.keys < keys.shape[-2]:
            keys, values = keys[:, :, : said.keys], values[:, :, : said.keys]
        return Ran(queries, keys, values, attention, heads, dropout, lse, said.gone, keys_of_text=True)

    def _definition(
        self, scale: float | None, softcap: float | None, sink: Tensor | None, bias: Bias | None, mask: Mask
    ) -> Attention:
        """The one of the layer before, if this one says the same: what is the same is soon seen to be equal."""
        last = self._last
        if (scale, softcap) != (last.scale, last.softcap) or any(
            one is not other for one, other in ((sink, last.sink), (bias, last.bias), (mask, last.mask))
        ):
            self._last = Attention(scale=scale, softcap=softcap, sink=sink, bias=bias, mask=mask)
        return self._last

    def _once(self, tensor: Tensor, read: Callable[[], Any]) -> Any:
        """What was read of this tensor, as long as nobody writes to it."""
        known = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1] != _version(tensor):
            known = self._known[id(tensor)] = (ref(tensor), _version(tensor), read())
        return known[2]

    # ---------------------------------------------------------------------------------------------- who sees whom

    def sdpa(
        self, module: nn.Module, queries: Tensor, keys: Tensor, given: Any, back: bool, options: Mapping[str, Any]
    ) -> Said:
        if given is not None:
            return self._written(given, keys)
        if not back:
            return Said(everyone, keys.shape[-2])
        one = queries.shape[-2] == 1  # of room that is not written yet, it takes as many keys as there are queries
        return Said(causal, keys.shape[-2] if one else min(queries.shape[-2], keys.shape[-2]))

    def eager(
        self, module: nn.Module, queries: Tensor, keys: Tensor, given: Any, back: bool, options: Mapping[str, Any]
    ) -> Said:
        if given is not None:
            return self._written(given, keys)
        return Said(causal if back and queries.shape[-2] == 1 else everyone, keys.shape[-2])

    def flash(
        self, module: nn.Module, queries: Tensor, keys: Tensor, given: Any, back: bool, options: Mapping[str, Any]
    ) -> Said:
        rows, columns = queries.shape[-2], keys.shape[-2]
        gone, keep = self.places.get((id(getattr(module, "config", None)), rows, columns), (0, given))
        mask: Mask = causal if back else everyone
        if options.get("sliding_window") is not None:
            mask = mask & window(options["sliding_window"])
        if options.get("cu_seq_lens_q") is not None:  # several texts in one sequence
            starts = options["cu_seq_lens_q"][1:-1].long()
            places = torch.arange(rows, device=starts.device)
            mask = mask & Documents(torch.searchsorted(starts, places, right=True)[None])
        if keep is not None:
            mask = mask & padded(filled(keep, gone + columns))
        return Said(mask, columns, gone)

    def flex(
        self, module: nn.Module, queries: Tensor, keys: Tensor, given: Any, back: bool, options: Mapping[str, Any]
    ) -> Said:
        if given is None or isinstance(given, Tensor):
            return self.eager(module, queries, keys, given, back, options)
        return Said(Told(given.mask_mod, queries.shape[-2] - keys.shape[-2]), keys.shape[-2])

    def _written(self, given: Tensor, keys: Tensor) -> Said:
        if isinstance(given, LazyMask):
            return Said(*given.understood)
        mask, bias = self._once(given, lambda: _read(given))
        return Said(mask, keys.shape[-2], bias=bias)


_WAYS: dict[str, Callable[..., Said]] = {
    "sdpa": Reader.sdpa,
    "eager": Reader.eager,
    "flash": Reader.flash,
    "flex_attention": Reader.flex,
}


def _read(given: Tensor) -> tuple[Mask, Bias | None]:
    """A tensor of four axes: True = may attend, or what is added to the scores, in which the lowest number hides."""
    seen = given if given.dtype == torch.bool else given > torch.finfo(given.dtype).min / 2
    mask = padded(seen[:, 0, 0]) if seen.shape[1:3] == (1, 1) else from_tensor(seen.clone())
    if given.dtype == torch.bool or not bool(given.masked_fill(~seen, 0.0).any()):
        return mask, None
    return everyone, from_additive(given.masked_fill(~seen, -torch.inf))


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
