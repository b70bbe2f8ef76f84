"""What the libraries that are imported before the fork hold of their process, as path -> value.

    imported_state.py fresh FILE        as rank 3 of 4 that imports them itself
    imported_state.py forked FILE       as a forkserver that imports them, and its rank 3

Writes by marshal: `values` of the rank, and which of its variables were read by what (`reads`);
of the forked one `before`, the values that it was forked with, and its number of `devices` then.
"""

import gc
import importlib
import itertools
import marshal
import os
import posix
import random
import re
import sys
import types
import warnings
from collections import defaultdict, deque
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from hpcdist.job.preload import PRELOADED_PACKAGES
from hpcdist.rank.import_state import renew_import_state

sys.path.append(str(Path(__file__).parents[1] / "support"))
from rank_places import environment_of, place

sys.path.pop()

USUAL_MODULES = (
    *("torch.distributed", "torch.distributed.fsdp", "torch._dynamo", "torch.utils.data"),
    *("scipy.stats", "sklearn.linear_model", "sklearn.model_selection", "PIL.Image"),
)
"""Beside the packages themselves."""

_ADDRESSES = range(1 << 40, 1 << 48)
_ADDRESS_IN_TEXT = re.compile(r"0x[0-9a-f]+")
_PLAIN = frozenset((int, float, complex, str, bytes, bool))
_SAYS_NOTHING = frozenset(("__doc__", "__annotations__", "__module__", "__qualname__", "__name__"))


def rank_variables():
    variables = environment_of(place(nodes=2, ranks_per_node=2, rank=3))
    return variables | {
        "TORCHELASTIC_ERROR_FILE": "/nonexistent",
        "HPCDIST_RUN_DIR": "/nonexistent",
    }


VARIABLES = rank_variables()


def import_all():
    for name in (*sorted(PRELOADED_PACKAGES), *USUAL_MODULES):
        if find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)


def record_reads(variables):
    """What each module has read, filled as it reads."""
    readers = defaultdict(set)

    def note(name):
        if name not in variables:
            return
        frame = sys._getframe(2)
        while frame.f_globals["__name__"] == "os":
            frame = frame.f_back
        if frame.f_globals["__name__"] != "collections.abc":  # who goes through all of them
            readers[frame.f_globals["__name__"]].add(name)

    class Recording(type(os.environ)):
        def __getitem__(self, name):
            note(name)
            return super().__getitem__(name)

        def __contains__(self, name):
            note(name)
            return super().__contains__(name)

        def get(self, name, default=None):
            note(name)
            return super().get(name, default)

    os.environ.__class__ = Recording
    return readers


def values():
    """All plain values and states of random generators that can be reached from modules."""
    found = {}
    seen = {id(found), id(os.environ), id(os.environ._data), id(posix.environ)}
    seen |= {id(sys.argv), id(sys.orig_argv), id(sys.path_importer_cache)}
    keep = [seen]  # what is made on the way must not be freed: its address would come again
    modules = sorted((name, module) for name, module in sys.modules.items() if name != "__main__")
    waiting = deque(module for module in modules if isinstance(module[1], types.ModuleType))
    kinds = {}
    while waiting:
        path, value = waiting.popleft()
        kind = type(value)
        if kind in _PLAIN:
            if kind is not int or value not in _ADDRESSES:
                found[path] = _without_addresses(value) if kind is str else repr(value)
            continue
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        keep.append(value)
        look, walk = kinds.get(kind) or kinds.setdefault(kind, (_look(kind), _walk(kind)))
        if look is not None:
            found[path] = look(value)
        for key, child in walk(value):
            if not isinstance(child, types.ModuleType):
                waiting.append((path + key, child))
    return found


def _look(kind):
    """What to say of a value of this kind itself."""
    numpy_random, torch = sys.modules["numpy.random"], sys.modules["torch"]
    looks = {
        random.SystemRandom: None,  # it has no state
        random.Random: lambda generator: str(hash(generator.getstate())),
        numpy_random.RandomState: lambda generator: str(hash(generator.get_state()[1].tobytes())),
        numpy_random.Generator: lambda generator: repr(generator.bit_generator.state),
        numpy_random.BitGenerator: lambda generator: repr(generator.state),
        torch.Generator: lambda generator: str(generator.initial_seed()),
        itertools.count: repr,
        **{base: base.__repr__ for base in (int, float, str, bytes)},
    }
    return next((look for base, look in looks.items() if issubclass(kind, base)), None)


def _walk(kind):
    """How to get at what a value of this kind holds: pairs of what to add to the path and value."""
    if issubclass(kind, types.FunctionType):
        return _of_function
    if issubclass(kind, types.MethodType | types.BuiltinMethodType):
        return lambda method: [(".__self__", method.__self__)]
    if issubclass(kind, partial):
        return lambda it: [(".func", it.func), (".args", it.args), (".keywords", it.keywords)]
    walks = [walk for base, walk in _WALKS.items() if issubclass(kind, base)]
    slots = [
        (f".{name}", names[name].__get__)
        for names in map(vars, kind.__mro__)
        for name in names
        if type(names[name]) is types.MemberDescriptorType
        and name != "__dict__"
        and not issubclass(kind, type)
    ]
    walks.append(partial(_of_object, slots))
    return lambda value: itertools.chain.from_iterable(walk(value) for walk in walks)


def _of_dict(value):
    # Not by its own methods: those of lazy ones import what they name.
    for key, child in list(dict.items(value)):
        if type(key) in _PLAIN:
            if type(key) is not int or key not in _ADDRESSES:
                yield f"[{_without_addresses(repr(key))}]", child
        else:
            yield f"[{type(key).__name__}]", child


def _of_collection(kind, value):
    """Plain ones together and sorted: the order in a set is nobody's business, nor that in a list
    which was made of one."""
    held = list(kind.__iter__(value))
    plain = [child for child in held if type(child) in _PLAIN]
    if plain and not any(type(child) is int and child in _ADDRESSES for child in plain):
        yield (
            "[plain]",
            " ".join(sorted(_without_addresses(repr(child)) for child in plain)),
        )
    if kind in {list, tuple, deque}:
        others = (child for child in held if type(child) not in _PLAIN)
        yield from ((f"[{index}]", child) for index, child in enumerate(others))


_WALKS = {dict: _of_dict} | {
    kind: partial(_of_collection, kind) for kind in (list, tuple, set, frozenset, deque)
}


def _of_function(value):
    yield from ((".defaults", value.__defaults__), (".kwdefaults", value.__kwdefaults__))
    yield ".__dict__", vars(value)
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            yield f".<{name}>", cell.cell_contents
        except ValueError:  # it is empty
            continue


def _of_object(slots, value):
    """A class, or what has attributes; not by its own ways to look them up."""
    try:
        names = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        names = {}
    for name, child in list(names.items()):
        if name not in _SAYS_NOTHING:
            yield f".{name}", child
    for name, get in slots:
        try:
            yield name, get(value)
        except (AttributeError, TypeError):
            continue


def _without_addresses(text):
    return _ADDRESS_IN_TEXT.sub("0x", text) if "0x" in text else text


def become_rank():
    os.environ.update(VARIABLES)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def reads_of_one(readers, variables):
    """But for who looks through all variables, for those of another name."""
    return {who: sorted(names) for who, names in readers.items() if names < variables.keys()}


def main(way, file):
    """The import has the same stack either way: torch keeps the text of it."""
    readers = {}
    if way == "fresh":
        become_rank()
        readers = record_reads(VARIABLES)
    import_all()
    found = {"reads": reads_of_one(readers, VARIABLES)}
    if way == "forked":
        torch = sys.modules["torch"]
        found["devices"] = len(torch.cuda.default_generators) + torch.cuda.is_initialized()
        found["before"] = values()
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
            return
        become_rank()
        renew_import_state()
    Path(file).write_bytes(marshal.dumps(found | {"values": values()}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    gc.disable()  # nothing is garbage here, and to find that out takes long
    main(*sys.argv[1:])
    os._exit(0)  # to free all of it takes seconds
