"""`watch`: record what a model's attentions do while the model runs, and leave the model as it was.

One call of an attention takes this way, which a debugger can step through:

    huggingface/interception.py _attention_function          run the model's own attention function
    huggingface/logged_passes.py PassLog.run                 let the call wait, and record it when
                                                             somebody reads
    observer.py                 Observer.after               complete the call, and record it
    huggingface/definition.py   DefinitionReader.read_call   describe the call as an AttentionCall
    recording/recording.py      Recording.record             append to the call before, or begin a
                                new one
    recording/summaries_call.py SummariesCall                store the call; its survey is queued
    recording/survey_queue.py   SurveyQueue.add              batch the surveys of several layers,
                                and run them
    recording/summaries_call.py SummaryDestination.receive   store the numbers of the survey

A step of a model that writes waits in huggingface/logged_steps.py with those that follow it, and
all are recorded as one call. Where it is recorded by itself, its query waits in
recording/continuation.py, and SummariesCall surveys the queries that wait, many at once, when
somebody reads them or when there are 128.

A compiled model hands its calls out of the graph, or copies them into buffers: compiled.py and
huggingface/compiled_runs.py.

A model of Telescope begins in telescope_models.py, _before_attention and _after_attention; steps
that decoding runs as a CUDA graph in captured_steps.py. Any other model begins in
torch_functions/interception.py, `intercept`.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed, nn

from ..anatomy import Modules, find_output_projections
from ..authors import StreamLog
from ..guesses import OF_KEEP
from ..recording import (
    ALSO,
    KEEP,
    TOP,
    GrowingTensor,
    HeadNumbers,
    KeepOptions,
    Layers,
    MapSize,
    QuerySelection,
    RecordedCall,
    Recording,
    StepsCall,
    SummariesCall,
    check_kinds,
    describe_unwatched,
    layers_without_attention,
    numbers_of_heads,
    query_selection,
    select_layers,
    store_named,
)
from ..token_kinds import TokenNames
from ..words import hint, suggests
from . import huggingface
from .found import find_attentions
from .interceptor import describe_bypasses
from .observer import Observer
from .residual_log import noting_streams

# Parts of a call that all processes have alike.
WITHOUT_HEADS = ("query_ids", "key_ids", "before", "after")


def tensor_parallel_size(model: nn.Module) -> int:
    """Return among how many processes the heads of a model are divided; 1 for any model of one
    process.
    """
    # transformers notes the number of processes in a model that it has divided.
    size = getattr(model, "_tp_size", None)
    running = distributed.is_available() and distributed.is_initialized()
    return size if isinstance(size, int) and running else 1


def tensor_parallel_rank(model: nn.Module) -> int:
    """Return which part of the heads this process has; 0 for any model of one process."""
    size = tensor_parallel_size(model)
    # The processes of one model have neighbouring ranks.
    return distributed.get_rank() % size if size > 1 else 0


def join_recording(recording: Recording) -> None:
    """Give the first process the heads of all, in the order of the processes. All processes must
    call this together.
    """
    first = distributed.get_rank() == 0
    count = distributed.get_world_size()
    # Send the parts of every call to the first process.
    own = {name: [_tensors(call) for call in watched.calls] for name, watched in recording.items()}
    gathered: list[Any] | None = [None] * count if first else None
    distributed.gather_object(own, gathered, 0)
    # The other processes keep their own heads.
    if gathered is None:
        recording._is_part = True
        return
    left_out = []
    for name, watched in recording.items():
        for i, call in enumerate(watched.calls):
            # Sinks and biases in a definition are those of the heads of one process.
            if call.attention.sink is not None or call.attention.bias is not None:
                left_out.append(name)
            else:
                _join(call, [part[name][i] for part in gathered])
    if left_out:
        warnings.warn(
            f'the definition of "{left_out[0]}" has numbers for each head, so that {len(left_out)} '
            "recordings keep the "
            "heads of the first process alone",
            stacklevel=5,
        )


def _tensors(call: RecordedCall) -> dict[str, Tensor]:
    return {name: part.tensor.cpu() for name, part in call._kept.items()}


def _join(call: RecordedCall, parts: list[dict[str, Tensor]]) -> None:
    """Put the heads of all processes side by side in the parts of a call."""
    joined = call._kept
    # Parts with heads have them on axis 1.
    for name, tensor in parts[0].items():
        if name not in WITHOUT_HEADS and tensor.ndim > 1:
            whole = torch.cat([part[name] for part in parts], 1).to(joined[name].tensor.device)
            own = joined[name]
            axis = own.axis if isinstance(own, GrowingTensor) else 2
            joined[name] = GrowingTensor(whole, axis, call._options.store, owned=True)
    # The call now has the heads of all processes, numbered from 0.
    batch, key_heads, d_q, d_k = call._facts.shape
    call._facts.heads = tuple(range(len(call._facts.heads) * len(parts)))
    call._facts.shape = (batch, key_heads * len(parts), d_q, d_k)


@suggests(
    "watch",
    "it records a block: with ts.watch(model) as recording: model(inputs)",
    layer="layers=",
    head="heads=",
    n="top=",
    text="the text into the block: with ts.watch(model): model(ids)",
    inputs="the call into the block: with ts.watch(model): model(inputs)",
    output_attentions='keep="queries-keys", and recording[layer].weights',
)
@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: Layers = None,
    heads: HeadNumbers = None,
    queries: int | Sequence[int] | slice | None = None,
    keep: str = "summaries",
    top: int | None = None,
    map: MapSize | None = None,
    store: str = "device",
    also: str | Iterable[str] = (),
    tokenizer: Any = None,
    tokens: Any = None,
) -> Iterator[Recording]:
    """Record every attention call of a model while a `with` block runs.

    The model computes the same bits as unwatched, and is restored when the block ends. A model
    of transformers may be compiled, and may be passed as torch.compile returned it. What is kept is
    a copy without gradients; of a short text it is made when somebody reads. Queries at padding,
    and after the end of a text that `generate` wrote, are left out: in the sums over queries and in
    `heads()`, and their own rows are empty, with entropy 0 and top key -1; only `trace()` shows
    them as they ran. Generating token by token is one call that grows. Only the thread that enters
    the block is watched. A layer that a model runs several times in one forward pass is recorded
    once for each pass: its name, then name.2, name.3; `layers` selects it with all passes, and
    `ts.edit` takes these names. A softmax that a model multiplies by several sets of values, in
    several calls, as DiffLlama does, is recorded once, with the values side by side. Attentions
    that cannot be watched are named in a warning when the block is entered, those that ran past the
    watch in one when the block is left, and both in `recording.left_out`. Of a model whose heads
    are divided among processes (tensor parallelism), the recording of the first process has the
    heads of all when the block is left; all processes must leave it.

    Args:
        model: a model of Telescope or of Hugging Face's transformers, or any module whose parts
            call scaled_dot_product_attention, flex_attention, nn.MultiheadAttention, flash-attn,
            xformers or ts.attend; a softmax written by hand cannot be seen.
        layers: the attentions to record: names, patterns such as "encoder.*", or numbers of layers,
            -1 for the last; None is all.
        heads: the numbers of the heads to record, -1 for the last of each layer; None is all.
        queries: the positions of the queries to record, counted without padding; -1 is the last
            token of the prompt, and then every generated token; None is all.
        keep: what to keep of each call. "summaries": the numbers of a survey, computed while the
            model runs, in memory that grows with n. "queries-keys": queries and keys, for rows,
            maps and any survey afterwards. "steps": values too, for traces, and the residual
            stream, for `why`, `writes` and `lens`: several times the memory of queries, keys and
            values, unless `queries` selects positions.
        top: with "summaries", how many of the largest weights of each query to keep; 8 unless
            given.
        map: with "summaries", keep a map of the weights of at most (rows, columns).
        store: where to keep the numbers: on the model's "device", in "ram" or on "disk".
        also: what else to keep, a name or several. "norms": ‖W_O v‖ of each key and head, for
            `sources(how="carried")`. "gradients": weight times gradient of each key, once a
            backward pass has run inside the block, for `sources(how="gradient")`; one sum for
            recorded heads that share their values. "streaming": with "summaries", the share of each
            query's weight on the first 4 and the last 256 keys.
        tokenizer: an object with `decode`, which turns token ids into text; Telescope's models have
            their own.
        tokens: what the tokens are, where they are not text alone: a `ts.Grid` of patches,
            `ts.Frames` of sound, `ts.Segments` of several kinds, or a list of names; for
            cross-attention (query tokens, key tokens), of which one may be None; or a dict from
            names and patterns of attentions, such as "vision.*", to these. They name the tokens
            that are given to the model, not those that it writes.

    Yields:
        The Recording. It can be read inside the block and after it.

    Raises:
        TypeError: if `model` is not a torch.nn.Module, or `layers` is of another type.
        ValueError: if the model cannot be watched (compiled and none of transformers, without a
            known attention, watched already), if an option does not fit, or if memory would not
            suffice.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer, heads=-1) as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> recording["attention"].call.heads
        (1,)
        >>> # One head, 5 queries, each gives 1 in all
        >>> recording["attention"].received.sum().round().item()
        5.0
    """
    if not isinstance(model, nn.Module):
        way = ": ts.load(name) loads a shipped one" if isinstance(model, str) else ""
        raise TypeError(f"watch takes a model, a torch.nn.Module, not {type(model).__name__}{way}")
    # Refuse options that do not fit before the model is touched.
    options = _keep_options(keep, top, map, query_selection(queries), store, also)
    divided = tensor_parallel_size(model) > 1
    if divided and heads is not None:
        raise ValueError(
            "heads= cannot select heads that are divided among processes; leave it out, and select "
            "later"
        )
    with record_calls(
        model,
        options,
        keep=keep,
        layers=layers,
        heads=heads,
        tokenizer=tokenizer,
        tokens=TokenNames.of(tokens),
    ) as recording:
        yield recording
    # All processes leave the block, and send their heads to the first.
    if divided:
        join_recording(recording)


@contextmanager
def record_calls(
    model: nn.Module,
    options: KeepOptions,
    *,
    keep: str = SummariesCall.keep,
    layers: Layers = None,
    heads: HeadNumbers = None,
    tokenizer: Any = None,
    tokens: TokenNames | None = None,
) -> Iterator[Recording]:
    """Record every attention call while the block runs, with options that are checked already; see
    `watch`.
    """
    found = find_attentions(model, "watch")
    modules = found.modules
    attentions = found.attentions
    unwatched = found.unwatched
    names = select_layers(list(attentions), layers, unwatched)
    numbers = None if heads is None else numbers_of_heads(heads)
    if tokens is not None:
        tokens.check_patterns(names)
    # Where every attention was asked for, name those that cannot be watched.
    if unwatched and layers is None:
        warnings.warn(f"{type(model).__name__}: {describe_unwatched(unwatched)}", stacklevel=5)
    # Find out how the tokenizer turns ids into text and into names.
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    decode = getattr(tokenizer, "decode", None)
    token_name = getattr(tokenizer, "id_to_token", None) or getattr(
        tokenizer, "convert_ids_to_tokens", None
    )
    recording = Recording(
        type(modules[""]).__name__, names, keep, options, decode, unwatched, token_name, tokens
    )
    if layers is None and found.backend is huggingface:
        recording.other_layers = layers_without_attention(modules, attentions.values(), unwatched)
    # Prepare the observer of the selected attentions, with W_O where norms are kept.
    selected = {name: attentions[name] for name in names}
    others = {name: attention for name, attention in attentions.items() if name not in selected}
    known = find_output_projections(modules, selected) if "norms" in options.also else {}
    observer = Observer(
        recording,
        names,
        numbers,
        known,
        keeps_gradients="gradients" in options.also,
        records_every=layers is None,
    )
    if found.may_attend_across(selected):
        # The queries of a cross-attention are the tokens of a self-attention before it.
        selected |= others
    # Only "steps" keeps the residual stream.
    keeps_stream = keep == StepsCall.keep
    residuals = observer.residuals.recording(
        modules if keeps_stream else Modules(), observer.is_active
    )
    noting: AbstractContextManager[None] = nullcontext()
    if keeps_stream:
        recording._stream = StreamLog(modules[""])
        noting = noting_streams(recording._stream, modules, attentions, observer)
    with residuals, noting, found.intercepting(selected, observer):
        try:
            yield recording
        finally:
            # Also after an exception: later work of this stream comes after the surveys.
            recording._wait()
        # Run the surveys that are still queued, if the block ended well.
        recording._flush(collects=tokens is not None)
        # Tokens that do not fit raise an error here, and not where somebody reads.
        if tokens is not None:
            check_kinds(tokens, {name: own.calls for name, own in recording.items()})
    if observer.bypasses:
        warnings.warn(
            f"{recording.model}: {describe_bypasses([*observer.bypasses.values()])}", stacklevel=5
        )


def _keep_options(
    keep: str,
    top: int | None,
    map: MapSize | None,
    queries: QuerySelection,
    store: str,
    also: str | Iterable[str],
) -> KeepOptions:
    if keep not in KEEP:
        ours = OF_KEEP.get(str(keep))
        way = f'what others call {keep} is keep="{ours}"' if ours else hint(str(keep), KEEP)
        raise ValueError(f'there is no keep="{keep}"; {way}')
    options: dict[str, Any] = {
        name: value for name, value in (("top", top), ("map", map)) if value is not None
    }
    # These options are of surveys while the model runs; other recordings are surveyed afterwards.
    if options and keep != SummariesCall.keep:
        given = ", ".join(f"{name}={value}" for name, value in options.items())
        raise ValueError(
            f'{given} is of keep="summaries"; with keep="{keep}", call survey({given}) afterwards'
        )
    # bool is a kind of int, and no number of weights.
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 0):
        raise ValueError(
            f"top={top!r} is how many weights of each query are kept; it takes 0 or more"
        )
    if map is not None and not (
        isinstance(map, tuple) and len(map) == 2 and all(isinstance(n, int) and n > 0 for n in map)
    ):
        raise ValueError(
            f"map={map!r} is not a size; it takes (rows, cols), such as map=(128, 128)"
        )
    # A single name is a set of one.
    more = frozenset([also] if isinstance(also, str) else also)
    for name in more - {*ALSO}:
        raise ValueError(f'there is no also="{name}"; {hint(str(name), ALSO)}')
    return KeepOptions(TOP if top is None else top, map, queries, store_named(store), more)
