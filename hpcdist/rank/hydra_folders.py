"""The folders that Hydra's scripts write into: one per rank, in the run directory.

By default each rank writes to outputs/DATE/TIME below the working directory. Ranks that start
within one second share its files, others have folders of their own, and on a cluster the working
directory is the snapshot, which runs share. A folder that the script, its configuration or its
arguments name stays as it is.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from hpcdist.rank.on_import import on_import

_LOADER = "hydra._internal.config_loader_impl"
_DEFAULTS = {
    "run": "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}",
    "sweep": "multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}",
}
"""Section of Hydra's configuration -> the `dir` that it has by default, as hydra.conf says it."""


def keep_folders_apart() -> None:
    """Give Hydra other default folders in this process, whether it is imported already or not."""
    on_import({_LOADER: _wrap_loader})


def _wrap_loader(module: ModuleType) -> None:
    loader = getattr(module, "ConfigLoaderImpl", None)
    if loader is None:  # another release
        return
    load = loader.load_configuration

    @functools.wraps(load)
    def load_configuration(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = load(self, *args, **kwargs)
        run_folder, rank = os.environ.get("HPCDIST_RUN_DIR"), os.environ.get("RANK", "")
        if run_folder and rank.isdecimal():
            _replace_defaults(config, f"{run_folder}/hydra/rank-{int(rank):05d}")
        return config

    loader.load_configuration = load_configuration


def _replace_defaults(config: Any, folder: str) -> None:
    from omegaconf import OmegaConf, open_dict

    hydra = config.get("hydra")
    for name, default in _DEFAULTS.items():
        section = None if hydra is None else hydra.get(name)
        if section is None:
            continue
        found = OmegaConf.to_container(section, resolve=False)
        if isinstance(found, dict) and found.get("dir") == default:
            with open_dict(section):
                section["dir"] = folder
