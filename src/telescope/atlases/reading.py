"""Run a model on a batch of token ids: language models, encoders, encoder-decoders, Telescope's and
transformers'.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Mask, padding
from ..decoding import generate
from ..models import GPT, Encoder, Translator
from .measure import send
from .texts import TokenBatch, longest_input

MAX_WRITTEN = 128  # tokens that an encoder-decoder writes for a text


class ModelReader:
    """Run a model on batches. `prepare` returns the forward pass to record; what it runs itself is
    not recorded.

    Logits are left out where a model has hidden states without them: an atlas needs none. An
    encoder-decoder first writes its own text, greedily, in `prepare`; the forward pass then reads
    both texts.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        config = getattr(model, "config", None)
        # Tell a model of transformers by its attributes, without importing the library.
        self.is_huggingface = hasattr(model, "base_model") and config is not None
        self.writes = isinstance(model, Translator) or (
            self.is_huggingface and bool(getattr(config, "is_encoder_decoder", False))
        )
        # The start token takes one position.
        self.most_written = min(MAX_WRITTEN, (longest_input(model) or MAX_WRITTEN + 1) - 1)
        self.takes_padding = self.is_huggingface or isinstance(model, GPT | Encoder | Translator)
        """Whether the model can be told which tokens are padding; else batches have texts of one
        length.
        """

    def prepare(self, batch: TokenBatch) -> Callable[[], object]:
        """Return the forward pass of a batch."""
        model = self.model
        ids = batch.ids
        if isinstance(model, Translator):
            # Write before the forward pass is recorded, which then reads both texts.
            target = self._translate(batch)
            return lambda: model.hidden(ids, target.ids, _mask(batch), _mask(target))
        if isinstance(model, GPT):
            return lambda: model.hidden(ids, _mask(batch))
        if isinstance(model, Encoder):
            return lambda: model(ids, _mask(batch))
        if not self.is_huggingface:
            return lambda: model(ids)
        inputs: dict[str, Any] = {"input_ids": ids}
        # Only where needed: with a mask, transformers waits for the GPU to see if a key is hidden.
        if batch.is_padded or self.writes:
            inputs["attention_mask"] = _present(batch)
        # One forward pass needs no cache of keys and values.
        if hasattr(model.config, "use_cache"):
            inputs["use_cache"] = False
        if self.writes:
            target = self._generate(batch)
            inputs |= {"decoder_input_ids": target.ids, "decoder_attention_mask": _present(target)}
            return lambda: model(**inputs)
        # The base model ends at the hidden states, before the logits.
        return lambda: model.base_model(**inputs)

    def _translate(self, batch: TokenBatch) -> TokenBatch:
        """Return what a translator of Telescope writes for a batch, each text behind its start
        token.
        """
        prompts = [
            row[:length].tolist() for row, length in zip(batch.ids, batch.lengths, strict=True)
        ]
        written = generate(self.model, prompts, max_new_tokens=self.most_written, temperature=0.0)
        # The decoder reads what it wrote, behind its start token.
        start = self.model.special.start
        lines = [torch.tensor([0 if start is None else start, *line.ids]) for line in written]
        ids = torch.nn.utils.rnn.pad_sequence(lines, batch_first=True).to(batch.ids.device)
        return TokenBatch(ids, [len(line) for line in lines], batch.places)

    def _generate(self, batch: TokenBatch) -> TokenBatch:
        """Return what an encoder-decoder of transformers writes for a batch."""
        model = self.model
        ids = model.generate(
            batch.ids,
            attention_mask=_present(batch),
            max_new_tokens=self.most_written,
            do_sample=False,
            num_beams=1,
        )
        # An answer reaches to its first end token; a model may have none, one or several.
        end = model.generation_config.eos_token_id
        ends = torch.isin(
            ids, torch.as_tensor([] if end is None else end, device=ids.device).reshape(-1).long()
        )
        ends[:, 0] = False  # the start token may be the id of the end
        first_end = torch.where(ends.any(1), ends.int().argmax(1), ids.shape[1] - 1)
        return TokenBatch(ids, (first_end + 1).tolist(), batch.places)


def _mask(batch: TokenBatch) -> Mask | None:
    """Return the mask that hides padding; None where there is none."""
    return padding(send(torch.tensor(batch.lengths), batch.ids.device)) if batch.is_padded else None


def _present(batch: TokenBatch) -> Tensor:
    """Return 1 at each token and 0 at padding, as transformers wants it."""
    lengths = send(torch.tensor(batch.lengths), batch.ids.device)
    return (torch.arange(batch.ids.shape[1], device=batch.ids.device) < lengths[:, None]).long()
