"""Blocks of a few rows and keys, so that a small attention is cut into many.

Work is cut into blocks of hundreds of rows and millions of scores. A test of a dozen tokens fits one of them, and sees
nothing of a fault in how blocks are put together. So the tests of LADDER are run once more with these sizes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

SIZES: dict[str, dict[str, Any]] = {  # each module that reads a size, since a size is imported by value
    "telescope.attention.regions": {"ROWS": 3},
    "telescope.engines.dispatch": {"SMALL": 8},  # more scores than this are not left to `reference`
    "telescope.engines.chunked": {"SCORES": {"cpu": 60}, "MIN_ROWS": 2},
    "telescope.engines.sdpa": {"ROWS": 3},
    "telescope.editing.changed_weights": {"SCORES": {"cpu": 60}},
    "telescope.recording.continuation": {"KEYS": 3},
    "telescope.interception.huggingface.definition": {"ROWS": 3},
    "telescope.interception.torch_functions.definition": {"ROWS": 3},
    "telescope.anatomy.parts": {"ROWS": 3},
    "telescope.authors.writes": {"ROWS": 3},
    "telescope.measures.habits": {"BLOCK": {"cpu": 60}},
    "telescope.measures.space": {"BLOCK": {"cpu": 60}},
    "telescope.measures.places": {"SMALL": {"cpu": 8}},
    "telescope.surveys.blocks": {"ROWS": 3, "GROUP": 2},
    "telescope.surveys.chunked": {"SCORES": {"cpu": 60}, "GROUP": 2, "STRIP": 2},
    "telescope.surveys.reference": {"KEYS": 3},
    "telescope.surveys.requests": {"TILE": 3},
    "telescope.surveys.shares": {"SCORES": {"cpu": 60}, "TILE": 3},
    "telescope.tiles.scores": {"ROWS": 3, "BLOCK": 12},
}
OTHERS = {  # sizes by these names that are not shrunk here, and why
    "telescope.circuitry.vocabulary": "tests/agreement/circuitry/test_circuits.py shrinks its ROWS",
    "telescope.circuitry.layer_weights": "BLOCK: positions; tests/agreement/circuitry/test_circuits.py shrinks it",
    "telescope.decoding.sampling": "tests/properties/decoding/test_decoding.py crosses it: 64 words of a vocabulary",
    "telescope.files.tables": "tests/faults/atlases/test_atlas_files.py has damage before and after a batch of rows",
    "telescope.files.atomic": "bytes of a trial file",
    "telescope.models.loss_kernel": "tests/agreement/models/test_loss.py shrinks its BLOCK; a program reads one row",
    "telescope.surveys.dispatch": "FEW chooses an engine; the tests of `fused` name it",
    "telescope.measures.row_sample": "how many rows an atlas looks at, not how many at a time",
    "telescope.surveys.launch": "GROUP: tests/agreement/surveys/test_survey_kernels.py shrinks it",
    "telescope.surveys.matrix": "tests/agreement/surveys/test_survey_kernels.py shrinks BM, BN and BLOCK",
    "telescope.tasks.explaining.examples": "SCORES: the scores of the worked examples, by their names",
    "telescope.tasks.explaining.tables": "KEYS of a worked example",
    "telescope.traces.render": "rows of a page",
}
LADDER = {  # what reads off a matrix block by block; engines, kernels and tiles shrink theirs in their own tests
    "agreement/recording/test_together.py",
    "agreement/engines/test_torch_sdpa.py",
    "agreement/recording/test_watch.py",
    "golden/surveys/test_survey_golden.py",
    "golden/recording/test_watch_golden.py",
}


@contextmanager
def small_blocks() -> Iterator[None]:
    """Cut all work into blocks of the sizes above. A size that was renamed is an AttributeError."""
    with pytest.MonkeyPatch.context() as patch:
        for name, sizes in SIZES.items():
            module = import_module(name)
            for size, small in sizes.items():
                if isinstance(small, dict):
                    for device, count in small.items():
                        patch.setitem(getattr(module, size), device, count)
                else:
                    patch.setattr(module, size, small)
        yield
