"""`ts.open`: open what Telescope saved, a recording or an atlas."""

import os
from typing import Any

from ..recording.opening import open_recording
from .atlas import Atlas
from .folder import is_atlas


def open_saved(path: str | os.PathLike[str]) -> Any:
    """Open a recording that `Recording.save` wrote, or an atlas that `ts.atlas` or `Atlas.save`
    wrote.

    Args:
        path: the folder.

    Returns:
        The `Recording` or the `Atlas`. Tensors of a recording are read from the files when they are
        first used, so that its folder has to stay.

    Raises:
        LoadError: if the folder holds neither, or if a file is damaged, does not fit the
            description, or is of another version. Damage to a tensor of a recording is found when
            the tensor is read.

    Example:
        >>> import tempfile, torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recording.save(f"{folder}/run.telescope")
        ...     opened = ts.open(f"{folder}/run.telescope")
        ...     opened["attention"].entropy.shape
        torch.Size([1, 2, 5])
    """
    return Atlas.open(path) if is_atlas(path) else open_recording(path)
