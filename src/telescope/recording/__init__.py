"""Everything kept of a watched model: its attention calls, their storage, the habits of heads,
saving and opening.

Imports survey, trace, tiles, files and the rooms below them, and nothing about models. Read
recording.py first, then recorded_call.py.
"""

from .alignment import AlignedHead, alignments
from .attention_call import (
    ALSO,
    TOP,
    AttentionCall,
    KeepOptions,
    MapSize,
    QuerySelection,
    query_selection,
)
from .call_tokens import check_kinds
from .continuation import ROOM
from .edits import SavedEdit
from .find_sources import source_kind, sources_of_scores, stack_of
from .forward_pass import ForwardPass
from .heads import Heads, natural_order
from .measured_heads import heads_of
from .names import (
    HeadNumbers,
    Layers,
    attention_name,
    attentions_inside,
    describe_unwatched,
    head_numbers,
    layers_without_attention,
    list_names,
    numbers_of_heads,
    select_layers,
    stack_and_number,
    unwatched_attentions,
)
from .opening import open_recording
from .opening import open_recording as open
from .queries_keys_call import StepsCall, one_head
from .recorded_call import RecordedCall
from .recording import KEEP, Recording
from .row_in_float64 import RowInFloat64, check_dropout
from .row_weights import head_places
from .saving import FILE
from .source_question import AnswerPositions, Calls, NotKeptError, Question, ask
from .sources import ANSWER, KINDS, Source, Sources
from .storage import Device, GrowingTensor, store_named
from .summaries_call import SummariesCall
from .watched import Watched

__all__ = [
    "ALSO",
    "ANSWER",
    "FILE",
    "KEEP",
    "KINDS",
    "ROOM",
    "TOP",
    "AlignedHead",
    "AnswerPositions",
    "AttentionCall",
    "Calls",
    "Device",
    "ForwardPass",
    "GrowingTensor",
    "HeadNumbers",
    "Heads",
    "KeepOptions",
    "Layers",
    "MapSize",
    "NotKeptError",
    "QuerySelection",
    "Question",
    "RecordedCall",
    "Recording",
    "RowInFloat64",
    "SavedEdit",
    "Source",
    "Sources",
    "StepsCall",
    "SummariesCall",
    "Watched",
    "alignments",
    "ask",
    "attention_name",
    "attentions_inside",
    "check_dropout",
    "check_kinds",
    "describe_unwatched",
    "head_numbers",
    "head_places",
    "heads_of",
    "layers_without_attention",
    "list_names",
    "natural_order",
    "numbers_of_heads",
    "one_head",
    "open",
    "open_recording",
    "query_selection",
    "select_layers",
    "source_kind",
    "sources_of_scores",
    "stack_and_number",
    "stack_of",
    "store_named",
    "unwatched_attentions",
]
