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
    "telescope.attention.padding_queries": {"ROWS": 3},
    "telescope.engines.dispatch": {"SMALL": 8},  # more scores than this are not left to `reference`
    "telescope.engines.chunked": {"SCORES": {"cpu": 60}, "MIN_ROWS": 2},
    "telescope.engines.sdpa": {"ROWS": 3},
    "telescope.recording.continuation": {"KEYS": 3},
    "telescope.interception.huggingface.definition": {"ROWS": 3},
    "telescope.interception.output_projection": {"ROWS": 3},
    "telescope.recording.head_shares": {"BLOCK": {"cpu": 60}, "SMALL": {"cpu": 8}},
    "telescope.surveys.blocks": {"ROWS": 3, "GROUP": 2},
    "telescope.surveys.chunked": {"SCORES": {"cpu": 60}, "GROUP": 2, "STRIP": 2},
    "telescope.surveys.reference": {"KEYS": 3},
    "telescope.surveys.requests": {"TILE": 3},
    "telescope.surveys.shares": {"SCORES": {"cpu": 60}, "TILE": 3},
    "telescope.tiles.scores": {"ROWS": 3, "BLOCK": 12},
}
OTHERS = {  # sizes by these names that are not shrunk here, and why
    "telescope.decoding.sampling": "tests/properties/test_decoding.py crosses it: 64 words of a vocabulary",
    "telescope.engines.tables": "FEW is how many numbers make a tensor worth comparing, and nothing is cut by it",
    "telescope.files.parquet": "tests/faults/test_atlas_files.py has damage before and after a batch of rows",
    "telescope.files.writable": "bytes of a trial file",
    "telescope.models.loss_kernel": "tests/agreement/test_loss.py shrinks its BLOCK; a program reads one row of logits",
    "telescope.surveys.dispatch": "FEW chooses an engine; the tests of `fused` name it",
    "telescope.recording.row_sample": "how many rows an atlas looks at, not how many at a time",
    "telescope.surveys.launch": "GROUP: tests/agreement/test_survey_kernels.py shrinks it",
    "telescope.surveys.matrix": "tests/agreement/test_survey_kernels.py shrinks BM, BN and BLOCK",
    "telescope.tasks.explaining.variance": "KEYS of a worked example",
    "telescope.traces.render": "rows of a page",
}
LADDER = {  # what reads off a matrix block by block; engines, kernels and tiles shrink theirs in their own tests
    "agreement/test_together.py",
    "agreement/test_torch_sdpa.py",
    "agreement/test_watch.py",
    "golden/test_survey_golden.py",
    "golden/test_watch_golden.py",
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
