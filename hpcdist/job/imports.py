"""Heavy packages that a user's code imports: imported once per node, before the ranks are forked.

Which they are, in which order, and what the program has set in its environment by then, is found
without running it. A package that would read something else then than in a rank is left to the
ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpcdist.job.own_ranks import note_on_own_ranks
from hpcdist.job.program_text import (
    OF_EACH_RANK,
    Change,
    Import,
    Place,
    SourceFile,
    read_program,
)

_COSTS = "some seconds of its CPU and memory of its own, instead of once per node"

_NUMERIC = frozenset(("numpy", "scipy", "sklearn", "pandas"))
_TRAINERS = frozenset(("torchmetrics", "pytorch_lightning", "lightning"))
_DYNAMO = "torch._dynamo"
PRELOADED_PACKAGES = frozenset(("torch", "torchvision", "PIL")) | _NUMERIC | _TRAINERS
"""Packages that can be imported before the fork: importing them starts no thread of their own, and
what they seed or read of a rank's environment meanwhile is renewed in the rank (import_state)."""

_TORCHVISION = ("numpy", "PIL", "torch", _DYNAMO)
_TORCHMETRICS = (*_TORCHVISION, "scipy", "torchvision")
_BRINGS: Mapping[str, tuple[str, ...]] = {
    "scipy": ("numpy",),
    "pandas": ("numpy",),
    "sklearn": ("numpy", "scipy", "pandas"),
    "torch": ("numpy",),
    _DYNAMO: ("numpy", "torch"),
    "torchvision": _TORCHVISION,
    "torchmetrics": _TORCHMETRICS,
    "pytorch_lightning": (*_TORCHMETRICS, "torchmetrics"),
    "lightning": (*_TORCHMETRICS, "torchmetrics"),
}
"""Package -> those that it imports as it is imported, where they are installed; in order."""

_ALL = PRELOADED_PACKAGES | {_DYNAMO}
_WITH_THREADS = _ALL - {"PIL", _DYNAMO}
_READERS: tuple[tuple[tuple[str, ...], frozenset[str]], ...] = (
    (
        (
            *("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "UCX_", "FI_", "WANDB_"),
            *("PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "PYTHONPATH"),
            *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING"),
            "CUBLAS_WORKSPACE_CONFIG",
        ),
        frozenset(),
    ),
    (
        (
            *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "DATASETS_", "DIFFUSERS_"),
            *("MPL", "MLFLOW_", "COMET_", "NEPTUNE_", "SLURM_", "TF_", "XLA_", "JAX_"),
        ),
        _TRAINERS,
    ),
    (("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_"), _WITH_THREADS),
    (("TORCH", "PYTORCH_", "TRITON_"), _ALL - _NUMERIC - {"PIL"}),
)
"""Beginnings of names of variables -> the packages that read them as they are imported, or that
import what does; of all other variables any package may. Recorded for what Python code reads, and
libraries by getenv, while each was imported (torch 2.15, lightning 2.6, transformers 5). Variables
of CUDA are read when it is started, which no import does."""

_LIGHT = frozenset(
    (
        *("absl", "attr", "attrs", "click", "cloudpickle", "colorama", "configargparse", "dotenv"),
        *("easydict", "filelock", "fire", "fsspec", "git", "hydra", "jinja2", "jsonargparse"),
        *("loguru", "ml_collections", "msgspec", "munch", "natsort", "omegaconf", "packaging"),
        *("prettytable", "psutil", "pydantic", "pynvml", "requests", "rich", "setproctitle"),
        *("simple_parsing", "six", "submitit", "tabulate", "tap", "tensorboard", "termcolor"),
        *("threadpoolctl", "toml", "tomli", "tqdm", "tyro", "typer", "typing_extensions", "wandb"),
        *("yacs", "yaml"),
    )
)
"""Packages that import none of the heavy ones as they are imported; any other may."""
_NEEDS_DYNAMO = (b"DistributedDataParallel", b"fully_shard", b"FullyShardedDataParallel", b"optim")
"""Names whose first use imports torch._dynamo, which takes as long as torch itself."""


class LeftOut(Struct, frozen=True, kw_only=True):
    """A package that each rank imports itself, and the change that is the reason."""

    package: str
    change: Change
    imported_at: Place | None = None
    """Place of an import that may run before the change or after it; None: it runs after it."""

    def reason(self) -> str:
        """Why, as the beginning of a sentence."""
        sets = f"{self.change.place} sets {self.change.name or 'variables of any name'}"
        if self.imported_at is not None:
            return f"{sets}, perhaps before {self.imported_at} imports"
        how = {
            "condition": "under a condition",
            "function": "in a function, which may be called before the import",
        }
        return f"{sets} {how.get(self.change.unknown, 'to a value that is only known at run time')}"

    def remedy(self) -> str:
        """Return what to do to have the package imported once per node."""
        name = self.change.name
        if name is None:
            return "name the variables and their values in the text, or set them where you submit"
        if self.imported_at is not None or self.change.unknown == "function":
            return f"set {name} at the top of the program, before all imports"
        return f"write the value out, or set {name} where you submit: export {name}=..."


class Preload(Struct, frozen=True, kw_only=True):
    """The imports before the fork."""

    steps: list[Change | str] = []
    """Changes of the environment, and the modules that are imported in it, in order."""
    left_out: list[LeftOut] = []

    @property
    def modules(self) -> list[str]:
        return [step for step in self.steps if isinstance(step, str)]

    def notes(self) -> list[str]:
        """Return a sentence for each change of the environment that keeps packages out."""
        packages: dict[tuple[str, str], list[str]] = {}
        for left in self.left_out:
            packages.setdefault((left.reason(), left.remedy()), []).append(left.package)
        return [
            f"{reason}: each rank imports {' and '.join(names)} itself, at {_COSTS} ({remedy})"
            for (reason, remedy), names in packages.items()
        ]

    def in_turn(self) -> Iterator[str]:
        """The modules, each to be imported before the next is asked for: the environment of this
        process is then as the program would have it. At the end it is as it was before, since each
        rank runs the program from its beginning."""
        changed = {step.name or "" for step in self.steps if isinstance(step, Change)}
        before = {name: os.environ.get(name) for name in changed}
        try:
            for step in self.steps:
                if isinstance(step, str):
                    yield step
                else:
                    _set_variable(step.name or "", step.value)
        finally:
            for name, value in before.items():
                _set_variable(name, value)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def heavy_imports(
    path: Path,
    *,
    first_on_path: Path | None = None,
    function: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Preload:
    """Return the heavy modules that a program imports, and what their use imports in turn; the
    arguments and errors are those of `read_program`."""
    return _read(path, first_on_path, function, environ)[0]


def _read(
    path: Path, first_on_path: Path | None, function: str | None, environ: Mapping[str, str]
) -> tuple[Preload, list[SourceFile]]:
    events, sources = read_program(
        path,
        environ=environ,
        installed=PRELOADED_PACKAGES | _LIGHT,
        first_on_path=first_on_path,
        function=function,
    )
    needs_dynamo = any(name in file.source for file in sources for name in _NEEDS_DYNAMO)
    folder = path.parent if first_on_path is None else first_on_path
    plan = _Plan(needs_dynamo=needs_dynamo)
    for event in events:
        if isinstance(event, Change):
            plan.change(event)
        elif (package := _package(event.module)) in PRELOADED_PACKAGES:
            # A package is left out if a module of the user's has the name of one that it imports.
            brought = _BRINGS.get(package, ())
            files = [file for name in brought for file in (f"{name}.py", f"{name}/__init__.py")]
            if not any((folder / file).exists() for file in files):
                plan.load(event)
        elif package not in _LIGHT:  # it may import any of the heavy ones
            plan.meet(_ALL, event.place, is_certain=False)
    return plan.end(), sources


def notes_on_program(
    path: Path,
    *,
    first_on_path: Path | None = None,
    function: str | None = None,
    num_ranks: int = 1,
) -> list[str]:
    """Return notes for the user on a program that is to be submitted: on its imports, and on ranks
    that it would start itself in each of several ranks."""
    environ = _WhereItWillRun(os.environ, OMP_NUM_THREADS="")
    try:
        found, sources = _read(path, first_on_path, function, environ)
    except (OSError, SyntaxError):  # it is read again where it runs
        return []
    except ValueError as error:
        return [f"{error}: each rank imports what it needs by itself"]
    own_ranks = note_on_own_ranks(sources) if num_ranks > 1 and function is None else None
    return found.notes() + ([own_ranks] if own_ranks else [])


class _WhereItWillRun(dict[str, str]):
    """The environment of a node, as far as it is known where the job is submitted: a variable that
    the program takes for granted will be there."""

    def __missing__(self, name: str) -> str:
        return f"${name}"


def readers(name: str | None) -> frozenset[str]:
    """Packages that read a variable (None: one of any name) as they are imported."""
    if name is None:
        return _ALL
    if name in OF_EACH_RANK:
        return frozenset()
    return next((packages for begins, packages in _READERS if name.startswith(begins)), _ALL)


def _package(module: str) -> str:
    return module if module == _DYNAMO else module.partition(".")[0]


class _Plan:
    """Goes through what a program does. A package is loaded for certain, or perhaps since some
    place, or not yet; one that is left out stays so."""

    def __init__(self, *, needs_dynamo: bool) -> None:
        self._needs_dynamo = needs_dynamo
        self._steps: list[Change | str] = []
        self._loaded: set[str] = set()
        self._perhaps: dict[str, Place] = {}
        self._unknown: dict[str | None, Change] = {}
        self._left_out: dict[str, LeftOut] = {}
        self._wanted: dict[str, None] = {}
        """Modules that are imported perhaps, or later, in order."""
        self._named: dict[str, None] = {}
        """Packages that the program imports by name, or by their use."""

    def change(self, change: Change) -> None:
        """The environment of what is not loaded yet is another from here on."""
        concerned = readers(change.name)
        for package in concerned & self._perhaps.keys():
            at = self._perhaps.pop(package)
            self._left_out[package] = LeftOut(package=package, change=change, imported_at=at)
        if not concerned:
            return
        earlier = self._unknown.get(change.name)
        if earlier is not None and earlier.unknown == "function":
            return  # it may be called after this change
        if change.unknown:
            self._unknown[change.name] = change
        else:
            self._unknown.pop(change.name, None)
            self._steps.append(change)

    def load(self, event: Import) -> None:
        """A heavy module is imported, and with it what it brings, and what its use imports."""
        self._bring(event.module, event.place, is_certain=event.is_certain)
        if _package(event.module) == "torch":
            self._bring("torch.distributed", event.place, is_certain=event.is_certain)
            if self._needs_dynamo:
                self._bring(_DYNAMO, event.place, is_certain=False)

    def end(self) -> Preload:
        """Import what is imported perhaps: nothing has changed that it would read."""
        for module in self._wanted:
            package = _package(module)
            self.meet((*_BRINGS.get(package, ()), package), None, is_certain=True)
            self._import(module)
        left_out = map(self._why_left_out, self._named)
        return Preload(steps=self._steps, left_out=[left for left in left_out if left is not None])

    def _bring(self, module: str, place: Place, *, is_certain: bool) -> None:
        package = _package(module)
        self._named[package] = None
        brought = _BRINGS.get(package, ())
        self.meet((*brought, package), place, is_certain=is_certain)
        if not is_certain:
            self._wanted[module] = None
        elif package in self._loaded:
            self._import(module)
        else:
            for part in brought:  # in the ranks it is imported here, in the environment of here
                self._import(part)

    def meet(self, packages: Iterable[str], place: Place | None, *, is_certain: bool) -> None:
        """Packages are imported, those before that the others import."""
        for package in packages:
            if package in self._loaded or package in self._left_out:
                continue
            change = self._unknown_to(package)
            if change is not None:
                self._perhaps.pop(package, None)
                self._left_out[package] = LeftOut(package=package, change=change)
            elif place is not None and not is_certain:
                self._perhaps.setdefault(package, place)
            elif self._why_left_out(package) is None:
                self._perhaps.pop(package, None)
                self._loaded.add(package)

    def _import(self, module: str) -> None:
        package = _package(module)
        is_right = package in self._loaded and self._unknown_to(package) is None
        if is_right and module not in self._steps:
            self._steps.append(module)

    def _unknown_to(self, package: str) -> Change | None:
        """Return a change to an unknown value that the package would read."""
        changes = self._unknown.values()
        return next((change for change in changes if package in readers(change.name)), None)

    def _why_left_out(self, package: str) -> LeftOut | None:
        for name in (package, *_BRINGS.get(package, ())):
            if name in self._left_out:
                return replace(self._left_out[name], package=package)
        return None
