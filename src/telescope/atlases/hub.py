"""Atlases on the Hugging Face hub: a dataset repository whose files are those of the folder."""

import os
from pathlib import Path
from typing import Any

from ..files import import_optional


def upload(
    folder: Path, repo: str, *, private: bool = True, token: str | None = None, **options: Any
) -> str:
    """Upload the folder of an atlas to a dataset repository, which is made if it does not exist;
    return its address.
    """
    hub = import_optional("huggingface_hub", "push_to_hub", "atlas").HfApi(token=token)
    hub.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
    commit = hub.upload_folder(
        repo_id=repo,
        folder_path=os.fspath(folder),
        repo_type="dataset",
        commit_message="Atlas of heads",
        **options,
    )
    return str(getattr(commit, "commit_url", commit))


def download(
    repo: str, *, revision: str | None = None, token: str | None = None, **options: Any
) -> Path:
    """Download a dataset repository that holds an atlas, and return its folder."""
    hub = import_optional("huggingface_hub", "from_hub", "atlas")
    return Path(
        hub.snapshot_download(repo, repo_type="dataset", revision=revision, token=token, **options)
    )
