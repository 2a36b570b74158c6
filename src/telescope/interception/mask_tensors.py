"""Read mask tensors, and functions of positions, as masks and biases of Telescope."""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from ..attention import Bias, Mask, Pairs, everyone, from_additive, from_tensor, padding

MaskFunction = Callable[..., Tensor]
"""mask_function(batch, head, query, key) -> bool, of index tensors that broadcast."""


class Translation(NamedTuple):
    """The result of translating a tensor, the tensor's version, and the modules that passed the
    tensor since.
    """

    version: int | None
    result: Any
    modules: set[int]


class Translations:
    """What was read of the tensors that one model passes to its attentions."""

    def __init__(self) -> None:
        self._known: MutableMapping[Tensor, Translation] = WeakTensorKeyDictionary()
        """Weak, so that a mask is freed when the model lets go of it:
        tests/agreement/test_watch_written_masks.py, test_what_was_read_of_a_mask_goes_with_it.
        """

    def __len__(self) -> int:
        return len(self._known)

    def once(self, module: nn.Module, tensor: Tensor, translate: Callable[[], Any]) -> Any:
        """Return translate(), computed once for all layers of a forward pass that are passed the
        same tensor.

        A tensor is translated again if it may have been written to: when its version has changed;
        in every call if it has no version, as under torch.inference_mode(); and when the same
        module passes it a second time, since a write through `.data` or NumPy changes no version.
        Equal results are one object, so that comparing them is fast.
        """
        known = self._known.get(tensor)
        version = None if tensor.is_inference() else tensor._version
        # Nothing was written, and another layer of the same pass asks: the translation holds.
        if (
            known is not None
            and version is not None
            and known.version == version
            and id(module) not in known.modules
        ):
            known.modules.add(id(module))
            return known.result
        result = translate()
        # Return the earlier object where the result is equal.
        if known is not None and known.result == result:
            result = known.result
        self._known[tensor] = Translation(version, result, {id(module)})
        return result


def read_mask(given: Tensor) -> tuple[Mask, Bias | None]:
    """Translate a mask tensor of four axes: True = may attend, or numbers added to the scores, the
    lowest hiding.
    """
    # Numbers near the lowest of the dtype hide a pair.
    seen = given.clone() if given.dtype == torch.bool else given > torch.finfo(given.dtype).min / 2
    # A mask that is the same for all heads and queries is padding.
    mask = padding_mask(seen[:, 0, 0]) if seen.shape[1:3] == (1, 1) else from_tensor(seen)
    # Numbers other than 0 at visible pairs are a bias, which then holds the mask, too.
    if given.dtype == torch.bool or not bool((seen & (given != 0)).any()):
        return mask, None
    return everyone, from_additive(given.masked_fill(~seen, -torch.inf))


def padding_mask(keep: Bool[Tensor, "batch key"]) -> Mask:
    """Return a padding mask in its shortest form, which for left padding is the same however long a
    text grows.
    """
    count = keep.sum(-1)
    keys = keep.shape[-1]
    # The first key that counts, and one past the last.
    first = keep.int().argmax(-1)
    last = keys - keep.flip(-1).int().argmax(-1)
    # Read all answers at once, so that a host waits for its GPU once.
    all_kept, contiguous, to_the_end, from_the_start = torch.stack(
        [
            (count == keys).all(),
            (last - first == count).all(),
            (last == keys).all(),
            (first == 0).all(),
        ]
    ).tolist()
    if all_kept:
        return everyone
    if contiguous and to_the_end:
        return padding(left=first)
    if contiguous and from_the_start:
        return padding(count)
    return padding(keep=keep)


def pad_to(keep: Tensor, keys: int) -> Bool[Tensor, "batch key"]:
    """Return a padding mask of exactly `keys` keys; missing keys are padding."""
    return torch.nn.functional.pad(keep.bool(), (0, max(0, keys - keep.shape[-1])))[:, :keys]


@dataclass(frozen=True, eq=False)
class FunctionMask(Mask):
    """A mask given by a function of positions.

    The function's query positions are `ahead` of Telescope's, where the last query stands at the
    last key.
    """

    function: MaskFunction
    ahead: int

    is_arbitrary = True

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        seen: Tensor = self.function(at.batch, at.head, at.query + self.ahead, at.key)
        # Add the leading axes that the function has left out.
        return seen.to(at.key.device).reshape((1,) * (4 - seen.ndim) + seen.shape)

    def __repr__(self) -> str:
        return f"function({getattr(self.function, '__name__', 'mask')})"
