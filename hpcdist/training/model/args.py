"""Whether model.args fit the model, as far as its source says: where the job is submitted."""

from __future__ import annotations

from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first
from hpcdist.job.spec import Model
from hpcdist.training.model.names import BUILT_IN_CLASSES, is_torchvision, torchvision_sources
from hpcdist.training.model.own_model import GIVEN, find_source, is_own
from hpcdist.training.model.signatures import Signature, read_parameters, read_signature

_TORCHVISION_GIVEN = {
    "num_classes": "has one output for each class of the data",
    "weights": "starts from freshly drawn weights",
}
"""Argument that all of torchvision's models are made with -> what it is."""


def check_model_args(model: Model) -> None:
    """Raise JobError for an argument that the model does not take, or needs and is not given."""
    if is_torchvision(model.name):
        _check_torchvision(model)
        return
    own = is_own(model.name)
    signature = _users(model.name) if own else _built_in(model.name)
    if signature is None:
        return
    # A user's class may be given other values than the data have; our own may not.
    names = [name for name in signature.names if own or name not in GIVEN]
    for name in model.args:
        if name not in names:
            raise _unknown(model.name, name, names)
    missing = [name for name in signature.required if name not in {*GIVEN, *model.args}]
    if missing:
        raise JobError(
            f"model.args has no {missing[0]}, which {model.name} needs",
            hint=f"add --set model.args.{missing[0]}=VALUE; it needs: {', '.join(missing)}",
        )


def _unknown(model: str, name: str, names: list[str]) -> JobError:
    if not names:
        return JobError(
            f"model.args has {name}, but {model} takes no arguments", hint="leave it out"
        )
    near = nearest_first(name, names)
    return JobError(
        f"model.args has {name}, which {model} does not take",
        hint=f"it takes, the nearest first: {', '.join(near)}",
    )


def _users(name: str) -> Signature | None:
    module, _, class_name = name.partition(":")
    source = find_source(module)
    return None if source is None else read_signature(source, class_name)


def _check_torchvision(model: Model) -> None:
    """They pass on what they are given, to a class of the same file: which, only running tells."""
    for name, reason in _TORCHVISION_GIVEN.items():
        if name in model.args:
            raise JobError(f"model.args has {name}, but {model.name} {reason}", hint="leave it out")
    source = torchvision_sources().get(model.name)
    taken = set(model.args) if source is None else read_parameters(source)
    for name in model.args:
        if name not in taken:
            raise JobError(
                f"model.args has {name}, which {model.name} does not take",
                hint="leave it out; --set model.args={} leaves out all that the job file has",
            )


def _built_in(name: str) -> Signature | None:
    return read_signature(Path(__file__).with_name("models.py"), BUILT_IN_CLASSES[name])
