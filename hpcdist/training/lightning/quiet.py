"""Keeping Lightning's own news out of the ranks' logs."""

from __future__ import annotations

import logging
import warnings

_LOGGERS = ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric")


def keep_quiet() -> None:
    """Show Lightning's warnings and errors, but not which accelerators there are, tips, or that
    a loop has ended; nor its guesses about what a user may have meant."""
    from lightning_fabric.utilities.warnings import PossibleUserWarning

    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # Lightning 2.6 on torch 2.15
