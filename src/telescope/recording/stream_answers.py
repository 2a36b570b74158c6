"""What a recording with keep="steps" answers about the residual stream: `why`, `writes`, `pushes`,
`lens`.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import SupportsIndex

from ..authors import Lens, Pushes, Readers, StreamLog, Why, Writes
from .authorship import Asked, lens, pushes, readers, why, writes
from .names import Layers, select_layers
from .recorded_call import RecordedCall


class StreamAnswers:
    """The questions about who wrote what; `Recording` adds them to its own.

    A state of the residual stream is a sum: the embedding, what each head and each feed-forward
    network wrote, and biases. With its norms held as they ran, a model takes such a sum through
    every projection, part by part.
    """

    _stream: StreamLog | None
    """The residual streams, with keep="steps"."""
    decode: Callable[[list[int]], str] | None
    token_name: Callable[[int], str | None] | None

    @property
    @abstractmethod
    def _calls(self) -> dict[str, list[RecordedCall]]:
        """The calls of each attention, by name."""

    def why(
        self,
        layer: str | SupportsIndex,
        head: SupportsIndex,
        query: SupportsIndex,
        key: SupportsIndex,
        *,
        against: SupportsIndex | None = None,
        sequence: SupportsIndex = 0,
    ) -> Why:
        """Return why a query of a head looks at a key: one score, split by who wrote what the two
        read.

        Every term is a pair of authors: what one wrote to the query's token, in the query, times
        what another wrote to the key's token, in the key. Authors are the embedding ("word"),
        positions, every head and feed-forward network before the layer, and biases. The terms add
        up to the score before softcap, bias and mask; what rounding adds is a term, too.

        Args:
            layer: the name or number of the attention, as in `ts.watch(layers=...)`.
            head: the head's number in the model; -1 is the last.
            query, key: positions among the tokens of the sequence, padding left out; in
                cross-attention the key's in the other sequence. -1 is the last.
            against: another key. Every term is then the difference of the two scores: what all keys
                have alike, which softmax does not see, cancels.
            sequence: which sequence of the batch.

        Returns:
            The terms, which print as a sentence and a table.

        Raises:
            ValueError: if too little was kept, with the option of `ts.watch` that keeps it; if
                there is no such head or position; if the score is no dot product; or if the stream
                cannot be followed, with the module at which it was lost.

        Example:
            >>> import torch, telescope as ts
            >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
            >>> model = ts.models.GPT(config).eval()
            >>> with ts.watch(model, keep="steps") as recording:
            ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
            >>> found = recording.why(-1, head=0, query=3, key=1)
            >>> abs(sum(found.by("query").values()) - found.score) < 1e-6
            True
        """
        asked = Asked(self._calls, self._stream, layer, sequence, "why()")
        return why(asked, head, query, key, against, self.decode, self.token_name)

    def writes(
        self,
        layer: str | SupportsIndex | None = None,
        head: SupportsIndex | None = None,
        position: SupportsIndex = -1,
        *,
        tokens: Sequence[int | str] | int | str | None = None,
        against: int | str | None = None,
        sequence: SupportsIndex = 0,
    ) -> Writes:
        """Return what each author of the residual stream adds to the logits of the next token
        (direct logit attribution).

        What a head wrote goes through the last norm as it ran and through the unembedding; what
        later layers make of it counts as theirs. The values of all authors add up to the logit.

        Args:
            layer: the attention whose heads are asked for; None is every author.
            head: with `layer`, one head, whose writing is divided among the keys that it read.
            position: the token after which the logits are; -1 is the last.
            tokens: ids or texts of the tokens whose logits are split; None is the token that came
                next in the text, or else the likeliest, beside its likeliest rival.
            against: the rival of the first of `tokens`: adds the column "difference".
            sequence: which sequence of the batch.

        Raises:
            ValueError: as `why`; or if the model has no unembedding, or a token is not in its
                vocabulary.

        Example:
            >>> import torch, telescope as ts
            >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
            >>> model = ts.models.GPT(config).eval()
            >>> with ts.watch(model, keep="steps") as recording:
            ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
            >>> found = recording.writes(tokens=5, against=6)
            >>> abs(found.logits["5"] - logits[0, -1, 5].item()) < 1e-6
            True
        """
        if head is not None and layer is None:
            raise ValueError("head= needs layer=, the attention that has the head")
        calls = self._calls
        chosen = [] if layer is None else select_layers(list(calls), layer)
        asked = Asked(calls, self._stream, self._decoder(chosen), sequence, "writes()")
        return writes(asked, chosen, head, position, tokens, against, self.decode, self.token_name)

    def pushes(
        self,
        layer: str | SupportsIndex,
        head: SupportsIndex,
        position: SupportsIndex = -1,
        *,
        top: int = 8,
        sequence: SupportsIndex = 0,
    ) -> Pushes:
        """Return the tokens whose logits a head pushes up and down most, of the whole vocabulary.

        What the head wrote goes through the last norm as it ran and through the unembedding. The
        mean over all tokens is taken off, because softmax ignores what all logits have alike. What
        later layers make of the head's output counts as theirs.

        Args:
            layer: the name or number of the attention, as in `ts.watch(layers=...)`.
            head: the head's number in the model; -1 is the last.
            position: the token after which the logits are; -1 is the last.
            top: how many tokens of each direction.
            sequence: which sequence of the batch.

        Returns:
            The tokens, each with the key that carried most of it. Fewer than `top` where the head
            pushes fewer tokens in a direction.

        Raises:
            ValueError: as `writes`; or if the attention is in an encoder, or `top` is below 1.

        Example:
            >>> import torch, telescope as ts
            >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
            >>> model = ts.models.GPT(config).eval()
            >>> with ts.watch(model, keep="steps") as recording:
            ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
            >>> found = recording.pushes(-1, head=0, top=1)
            >>> found.up[0].value > 0 > found.down[0].value
            True
        """
        asked = Asked(self._calls, self._stream, layer, sequence, "pushes()")
        return pushes(asked, head, position, top, self.decode, self.token_name)

    def readers(
        self,
        layer: str | SupportsIndex,
        head: SupportsIndex,
        query: SupportsIndex,
        key: SupportsIndex,
        *,
        sequence: SupportsIndex = 0,
    ) -> Readers:
        """Return which later heads read what a head wrote: its part of each of their scores of one
        query against one key (composition). It is `why` from the other end.

        Args:
            layer, head: the head that wrote; later self-attentions of its stack are asked.
            query, key: positions of the scores, among the tokens of the sequence.
            sequence: which sequence of the batch.

        Raises:
            ValueError: as `why`, for the head and for each later attention.

        Example:
            >>> import torch, telescope as ts
            >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
            >>> model = ts.models.GPT(config).eval()
            >>> with ts.watch(model, keep="steps") as recording:
            ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
            >>> [
            ...     (row.layer, row.head)
            ...     for row in recording.readers(0, head=1, query=3, key=1).rows
            ... ]
            [('blocks.1.self', 0), ('blocks.1.self', 1)]
        """
        calls = self._calls
        asked = Asked(calls, self._stream, layer, sequence, "readers()")
        return readers(asked, calls, head, query, key, self.decode, self.token_name)

    def lens(
        self,
        position: SupportsIndex = -1,
        *,
        token: int | str | None = None,
        top: int = 5,
        layers: Layers = None,
        sequence: SupportsIndex = 0,
    ) -> Lens:
        """Return what each state of the residual stream says of the next token (the logit lens).

        Args:
            position: the token after which is asked; -1 is the last.
            token: the token to follow, by id or text; None is the one that came next in the text,
                or else the likeliest.
            top: how many of the likeliest tokens of each state to name.
            layers: the attentions before which a state is read; None is all.
            sequence: which sequence of the batch.

        Raises:
            ValueError: as `writes`.

        Example:
            >>> import torch, telescope as ts
            >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
            >>> model = ts.models.GPT(config).eval()
            >>> with ts.watch(model, keep="steps") as recording:
            ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
            >>> recording.lens().states
            ('before 0', 'before 1', 'end')
        """
        calls = self._calls
        names = select_layers(list(calls), layers)
        asked = Asked(calls, self._stream, self._decoder(names), sequence, "lens()")
        some = {name: calls[name] for name in names}
        return lens(asked, some, position, token, top, self.decode, self.token_name)

    def _decoder(self, chosen: Sequence[str]) -> str:
        """Return an attention of the stack whose end has logits: the last of those that were
        chosen, or of all.
        """
        names = [*chosen] or [name for name, calls in self._calls.items() if calls]
        if not names:
            raise ValueError("nothing was recorded: run the model inside of the block of ts.watch")
        return names[-1]
