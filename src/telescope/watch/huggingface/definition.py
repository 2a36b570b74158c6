"""What a call of an attention function of transformers computes, as a definition of ours.

Each implementation has its own way to say who sees whom: `sdpa` looks back by itself where it is given no mask, `eager`
does what the mask says, `flash` is told of padding and windows, `flex` has a mask function.
"""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from ...attention import Attention, Bias, Mask, causal, everyone, from_additive, from_tensor, window
from ...attention.biases import Relative
from ...attention.masks import Documents
from ...attention.restrict import without_first_keys
from ...engines import torch_modes
from ...recording.attention_call import AttentionCall
from .lazy import LazyMask
from .masks import FunctionMask, MaskOffsets, filled, padded


class MaskReading(NamedTuple):
    """Who sees whom: how many of the keys are there, and how many were before them."""

    mask: Mask
    keys: int
    gone: int = 0
    bias: Bias | None = None


class RememberedTensor(NamedTuple):
    """What was read of a tensor, at which version of it, and for which modules since."""

    version: int | None
    meaning: Any
    readers: set[int]


PLACES = 16  # kinds of masks that the layers of one model ask for in one forward pass; a few are usual


class DefinitionReader:
    """Reads calls. What a model hands to all of its layers is looked at once."""

    def __init__(self) -> None:
        self._known: MutableMapping[Tensor, RememberedTensor] = (
            WeakTensorKeyDictionary()
        )  # what is read of a tensor goes with it
        self._biases: dict[int, Bias | None] = {}
        self._last = Attention()
        self._places: dict[tuple[int, int, int], tuple[int, Tensor | None]] = {}

    def place(self, config: Any, place: MaskOffsets, keep: Tensor | None) -> None:
        """Remember where the keys of a mask stand, and their padding, for an attention that is told neither.

        Only the latest are remembered: a model that writes asks for one more key each time.
        """
        about = (id(config), place.queries, place.keys)
        self._places.pop(about, None)
        self._places[about] = (place.key, keep)
        while len(self._places) > PLACES:
            del self._places[next(iter(self._places))]

    def ran(
        self,
        implementation: str,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        given: Any,
        options: Mapping[str, Any],
        lse: Tensor | None,
    ) -> AttentionCall:
        queries, keys, values = torch_modes.cast_for_autocast(*tensors)
        looks_back = options.get("is_causal")
        if looks_back is None:
            looks_back = getattr(module, "is_causal", True)
        who = _WAYS["flash" if "flash" in implementation else implementation]
        said = who(self, module, queries, keys, given, bool(looks_back), options)
        bias = said.bias
        added = options.get("position_bias")
        if added is not None:
            known = self._biases.get(id(module))
            mine = self._once(module, added, lambda: bias_of(added.detach()[..., : said.keys], known))
            self._biases[id(module)] = mine
            bias = mine if bias is None else bias
        (batch, heads, rows, _), mask = queries.shape, said.mask
        if said.gone:
            of = (rows, said.gone + said.keys)
            mask = without_first_keys(mask, said.gone, of, batch=batch, heads=heads)
        knows = implementation != "sdpa"  # which refuses these, or, before 5.0, leaves them out
        attention = self._definition(
            options.get("scaling"),
            options.get("softcap") if knows else None,
            options.get("s_aux") if knows else None,
            bias,
            mask,
        )
        dropout = float(options.get("dropout") or 0.0)
        if said.keys < keys.shape[-2]:
            keys, values = keys[:, :, : said.keys], values[:, :, : said.keys]
        numbers = tuple(range(heads))
        return AttentionCall(queries, keys, values, attention, numbers, dropout, lse, said.gone, keys_of_text=True)

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

    def _once(self, module: nn.Module, tensor: Tensor, read: Callable[[], Any]) -> Any:
        """Return what `read` makes of this tensor, for all layers of one forward pass at once.

        A tensor is read again if it may have been written to: when its version has changed; in every call if it has no
        version, as under torch.inference_mode(); and when the same module passes it a second time, since a write
        through `.data` or NumPy changes no version. Equal results are one object, so that comparing them is fast.
        """
        known = self._known.get(tensor)
        version = None if tensor.is_inference() else tensor._version
        if known is not None and version is not None and known.version == version and id(module) not in known.readers:
            known.readers.add(id(module))
            return known.meaning
        meaning = read()
        if known is not None and known.meaning == meaning:
            meaning = known.meaning
        self._known[tensor] = RememberedTensor(version, meaning, {id(module)})
        return meaning

    # ---------------------------------------------------------------------------------------------- who sees whom

    def sdpa(
        self, module: nn.Module, queries: Tensor, keys: Tensor, given: Any, back: bool, options: Mapping[str, Any]
    ) -> MaskReading:
        if given is not None:
            return self._written(module, given, keys)
        rows, columns = queries.shape[-2], keys.shape[-2]
        if not back:
            return MaskReading(everyone, columns)
        # of room that is not written yet, it takes as many keys as there are queries
        return MaskReading(causal, columns if rows == 1 else min(rows, columns), self._gone(module, rows, columns)[0])

    def eager(
        self, module: nn.Module, queries: Tensor, keys: Tensor, given: Any, back: bool, options: Mapping[str, Any]
    ) -> MaskReading:
        if given is not None:
            return self._written(module, given, keys)
        return MaskReading(causal if back and queries.shape[-2] == 1 else everyone, keys.shape[-2])

    def flash(
        self, module: nn.Module, queries: Tensor, keys: Tensor, given: Any, back: bool, options: Mapping[str, Any]
    ) -> MaskReading:
        rows, columns = queries.shape[-2], keys.shape[-2]
        gone, keep = self._gone(module, rows, columns, given)
        mask: Mask = causal if back else everyone
        if options.get("sliding_window") is not None:
            mask = mask & window(options["sliding_window"])
        if options.get("cu_seq_lens_q") is not None:  # several texts in one sequence
            starts = options["cu_seq_lens_q"][1:-1].long()
            places = torch.arange(rows, device=starts.device)
            mask = mask & Documents(torch.searchsorted(starts, places, right=True)[None])
        if keep is not None:
            mask = mask & padded(filled(keep, gone + columns))
        return MaskReading(mask, columns, gone)

    def flex(
        self, module: nn.Module, queries: Tensor, keys: Tensor, given: Any, back: bool, options: Mapping[str, Any]
    ) -> MaskReading:
        if given is None or isinstance(given, Tensor):
            return self.eager(module, queries, keys, given, back, options)
        return MaskReading(FunctionMask(given.mask_mod, queries.shape[-2] - keys.shape[-2]), keys.shape[-2])

    def _gone(self, module: nn.Module, rows: int, columns: int, keep: Any = None) -> tuple[int, Any]:
        """How many keys were before these, and the padding of all."""
        return self._places.get((id(getattr(module, "config", None)), rows, columns), (0, keep))

    def _written(self, module: nn.Module, given: Tensor, keys: Tensor) -> MaskReading:
        if isinstance(given, LazyMask):
            if not given.overwritten:
                return MaskReading(*given.understood)
            given = given.dense
        mask, bias = self._once(module, given, lambda: _read(given))
        return MaskReading(mask, keys.shape[-2], bias=bias)


_WAYS: dict[str, Callable[..., MaskReading]] = {
    "sdpa": DefinitionReader.sdpa,
    "eager": DefinitionReader.eager,
    "flash": DefinitionReader.flash,
    "flex_attention": DefinitionReader.flex,
}


def _read(given: Tensor) -> tuple[Mask, Bias | None]:
    """A tensor of four axes: True = may attend, or what is added to the scores, in which the lowest number hides."""
    seen = given.clone() if given.dtype == torch.bool else given > torch.finfo(given.dtype).min / 2
    mask = padded(seen[:, 0, 0]) if seen.shape[1:3] == (1, 1) else from_tensor(seen)
    if given.dtype == torch.bool or not bool((seen & (given != 0)).any()):
        return mask, None
    return everyone, from_additive(given.masked_fill(~seen, -torch.inf))


ROWS = 1024  # looked at together


def bias_of(added: Float[Tensor, "#batch heads query key"], known: Bias | None) -> Bias | None:
    """By the distance alone where that says all, in memory that grows with n; None where nothing is added.

    A row that is written says nothing of the distances ahead of it, which `known`, the bias before it, may know.
    """
    if not added.any():
        return None
    if len(added) > 1 or not _of_distance(added[0]):
        return from_additive(added)
    heads, queries, keys = added.shape[1:]
    ahead = added[0, :, 0, keys - queries + 1 :]
    if isinstance(known, Relative) and known.table.shape[0] == heads:
        ahead = torch.cat([ahead, known.table[:, known.table.shape[1] // 2 + 1 :][:, ahead.shape[1] :]], 1)
    table = torch.cat([added[0, :, -1], ahead[:, : keys - 1]], 1)
    missing = 2 * keys - 1 - table.shape[1]
    return Relative(torch.cat([table, table[:, -1:].expand(heads, missing)], 1))


def _of_distance(added: Float[Tensor, "heads query key"]) -> bool:
    """Whether every diagonal is one number."""
    last = added.shape[1] - 1
    return all(
        torch.equal(added[:, row + 1 : min(row + ROWS, last) + 1, 1:], added[:, row : min(row + ROWS, last), :-1])
        for row in range(0, last, ROWS)
    )
