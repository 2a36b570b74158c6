"""Open a text in which a habit of a head is strong: find the model of an atlas, and the text in its
corpus.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..atlases import EXCERPT, Atlas, Evidence, encoder_of, text_at, weights_checksum
from ..measures import HABITS
from ..models import Model
from .requests import Refusal, bad_parameter, not_kept, unknown

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # in which the model may have been read
FIELDS = {"atlas", "l", "h", "habit", "rank"}


def find_evidence(atlas: Atlas, request: Mapping[str, Any]) -> Evidence:
    """Return the text that {"l": 0, "h": 1, "habit": "previous", "rank": 0} names, or raise
    Refusal.
    """
    layer, number, rank, habit = (request.get(name) for name in ("l", "h", "rank", "habit"))
    if set(request) != FIELDS or not all(
        type(one) is int and one >= 0 for one in (layer, number, rank)
    ):
        raise bad_parameter(
            'the body must be {"atlas": "…", "l": 0, "h": 0, "habit": "previous", "rank": 0}'
        )
    if habit not in HABITS:
        raise unknown(f'there is no habit "{str(habit)[:40]}"; there are {", ".join(HABITS)}')
    assert isinstance(layer, int)
    assert isinstance(rank, int)
    if layer >= len(atlas.layers):
        raise unknown(
            f"there is no attention {layer}; there are {len(atlas.layers)}, counted from 0"
        )
    numbers = [own for name, own in atlas.places if name == atlas.layers[layer]]
    if number not in numbers:
        raise unknown(f'there is no head {number} of "{atlas.layers[layer]}"')
    found = atlas.evidence(atlas.layers[layer], number, habit)
    if rank >= len(found):
        raise unknown(
            f'there is no text {rank} of this head for "{habit}"; there are {len(found)}, counted '
            "from 0"
        )
    return found[rank]


def find_model(atlas: Atlas, names: list[str], open_model: Callable[[str], Model]) -> str:
    """Return the name of the model that an atlas is of, by a checksum of its weights, or raise
    Refusal 409.

    A model of transformers is found by its size: Telescope's own classes give its weights other
    names.
    """
    wanted = atlas.about.get("model", {})
    of_the_size = []
    for name in names:
        try:
            model = open_model(name)
        except Refusal:
            continue
        if sum(parameter.numel() for parameter in model.parameters()) != wanted.get("parameters"):
            continue
        if type(model).__name__ != wanted.get("class"):
            of_the_size.append(name)
        elif "weights" not in wanted:
            raise not_kept(
                "this atlas was written by an earlier version, so its model cannot be told; make "
                "it again"
            )
        elif any(weights_checksum(model, dtype) == wanted["weights"] for dtype in DTYPES):
            return name
    if len(of_the_size) == 1:
        return of_the_size[0]
    raise not_kept(
        f"the model of this atlas, a {wanted.get('class')} with {wanted.get('parameters', 0):,} "
        "parameters, is not "
        "here: telescope serve ATLAS --model FOLDER opens it"
    )


def read_evidence(atlas: Atlas, evidence: Evidence, model: Model) -> tuple[str, bool]:
    """Return the text, and whether it is all that the atlas read: else it is the beginning, which
    the atlas holds.

    The corpus is read only where its file still begins at that place as the atlas says. A file that
    an atlas names can so not be made to show anything that the atlas does not know.
    """
    tokenizer = model.tokenizer
    found = (
        text_at(evidence.source, evidence.line, str(atlas.about.get("column", "text")))
        if evidence.line
        else None
    )
    if found is not None and tokenizer is not None:
        ids = encoder_of(tokenizer)(found)[evidence.first : evidence.first + evidence.tokens]
        if tokenizer.decode(ids[:EXCERPT]) == evidence.excerpt and len(ids) == evidence.tokens:
            return tokenizer.decode(ids), True
    return evidence.excerpt, evidence.tokens <= EXCERPT
