"""What is wrong with the plain values of a job or a profile, in the words of its user.

`check_values` walks the values along its struct and raises for the first mistake: the key, the
value, where it came from, and what it must be. What it lets through, msgspec converts.
"""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest, nearest_first

Path = tuple[str, ...]
Origin = Callable[[Path], str]
"""Names the place that a key's value came from: the job file, a flag, or --set."""

_SHOWN_LENGTH = 60


def check_values(
    values: Mapping[str, Any],
    struct: type[msgspec.Struct],
    origin: Origin,
    *,
    whole: str = "a job",
) -> None:
    """Raise JobError for the first key of `values` that `struct` cannot take.

    `whole` is what messages call the thing that all values together describe.
    """
    _check_section(values, _Section(struct=struct, path=(), root=struct, whole=whole), origin)


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """A struct, where it stands in the whole, and the whole."""

    struct: type[msgspec.Struct]
    path: Path
    root: type[msgspec.Struct]
    whole: str

    def below(self, key: str, struct: type[msgspec.Struct]) -> _Section:
        return msgspec.structs.replace(self, struct=struct, path=(*self.path, key))


def _check_section(values: Mapping[str, Any], section: _Section, origin: Origin) -> None:
    hints = typing.get_type_hints(section.struct, include_extras=True)
    fields = {field.name: field for field in msgspec.structs.fields(section.struct)}
    path = section.path
    for key, value in values.items():
        if key not in fields:
            raise _unknown_key(key, list(fields), section, origin)
        if not _is_struct(hints[key]):
            _check_leaf(value, hints[key], (*path, key), fields[key], origin)
        elif isinstance(value, Mapping):
            _check_section(value, section.below(key, hints[key]), origin)
        else:
            raise _not_a_section((*path, key), value, hints[key], origin)
    for field in fields.values():
        if field.required and field.name not in values:
            raise JobError(
                f"{origin((*path, field.name))}: {dotted((*path, field.name))} is missing",
                hint=f"add the key {field.name}: {_wanted(inspect.type_info(hints[field.name]))}",
            )


def _check_leaf(
    value: Any, annotation: Any, path: Path, field: msgspec.structs.FieldInfo, origin: Origin
) -> None:
    if accepts(annotation, value):
        return
    wanted = inspect.type_info(annotation)
    _check_items(value, wanted, path, origin)
    must = _broken_bound(wanted, value) or _wanted(wanted)
    raise JobError(
        f"{origin(path)}: {dotted(path)} is {show(value)}, must be {must}",
        hint=_leaf_hint(wanted, value, path, field),
    )


def _check_items(value: Any, wanted: inspect.Type, path: Path, origin: Origin) -> None:
    """Raise for the one item of a mapping that is wrong, not for the whole mapping."""
    if not isinstance(wanted, inspect.DictType) or not isinstance(value, Mapping):
        return
    for key, item in value.items():
        if not _is_of_type(item, wanted.value_type):
            where = (*path, key)
            raise JobError(
                f"{origin(where)}: {dotted(where)} is {show(item)}, "
                f"must be {_wanted(wanted.value_type)}",
                hint=_quotes_hint(wanted.value_type, item)
                or f"correct {dotted(where)}, or remove it",
            )


def _is_of_type(value: Any, wanted: inspect.Type) -> bool:
    if isinstance(wanted, inspect.UnionType):
        return any(_is_of_type(value, part) for part in wanted.types)
    return isinstance(value, _PYTHON_TYPES.get(type(wanted), object))


def _quotes_hint(wanted: inspect.Type, value: Any) -> str | None:
    """YAML reads 4, 007 and true as numbers and booleans: quotes make them text."""
    parts = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
    if isinstance(value, bool | int | float) and any(isinstance(p, inspect.StrType) for p in parts):
        return "write the value in quotes, to make it text"
    if isinstance(value, list) and isinstance(wanted, inspect.ListType):
        bare = [item for item in value if _quotes_hint(wanted.item_type, item)]
        if bare and all(isinstance(item, str) or item in bare for item in value):
            return f"write {show(bare[0])} in quotes, to make it text: '{show(bare[0])}'"
    return None


def accepts(annotation: Any, value: Any) -> bool:
    """Whether a field with this annotation takes the value; infinity and nan are never taken."""
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return not (isinstance(value, float) and not math.isfinite(value))


def annotation_at(struct: type[msgspec.Struct], path: Path) -> Any | None:
    """The annotation of the field that a dotted path leads to; None where there is none."""
    found: Any = struct
    for key in path:
        if not _is_struct(found):
            return None
        found = typing.get_type_hints(found, include_extras=True).get(key)
    return found


def dotted(path: Path) -> str:
    """A key as the user writes it: resources.nodes."""
    return ".".join(path)


def show(value: Any) -> str:
    """A value in a message: as JSON, which YAML reads too, and not too long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."


def _is_struct(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _unknown_key(key: str, known: list[str], section: _Section, origin: Origin) -> JobError:
    path = (*section.path, key)
    near = nearest(key, known)
    elsewhere = [leaf for leaf in _leaves(section.root, ()) if leaf[-1] == key]
    suggestion = dotted(elsewhere[0]) if elsewhere else near and dotted((*section.path, near))
    where = dotted(section.path) or section.whole
    listed = f"{where} takes: {', '.join(nearest_first(key, known) if near else known)}"
    return JobError(
        f"{origin(path)}: {dotted(path)} is not a key that is known",
        hint=f"did you mean {suggestion}? {listed}" if suggestion else listed,
    )


def _leaves(struct: type[msgspec.Struct], path: Path) -> Iterator[Path]:
    for key, annotation in typing.get_type_hints(struct, include_extras=True).items():
        if _is_struct(annotation):
            yield from _leaves(annotation, (*path, key))
        else:
            yield (*path, key)


def _not_a_section(
    path: Path, value: Any, struct: type[msgspec.Struct], origin: Origin
) -> JobError:
    known = ", ".join(struct.__struct_fields__)
    return JobError(
        f"{origin(path)}: {dotted(path)} is {show(value)}, must be a section with keys",
        hint=f"{dotted(path)} takes: {known}",
    )


def _leaf_hint(
    wanted: inspect.Type, value: Any, path: Path, field: msgspec.structs.FieldInfo
) -> str:
    names = [name for name in _literals(wanted) if isinstance(name, str)]
    near = nearest(value, names) if isinstance(value, str) else None
    if near is not None:
        return f"did you mean {near}?"
    if quotes := _quotes_hint(wanted, value):
        return quotes
    if field.required:
        return f"give {dotted(path)} a value: {_wanted(wanted)}"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f"leave {dotted(path)} out for its default, {show(default)}"


def _literals(wanted: inspect.Type) -> list[Any]:
    if isinstance(wanted, inspect.LiteralType):
        return list(wanted.values)
    if isinstance(wanted, inspect.UnionType):
        return [value for part in wanted.types for value in _literals(part)]
    return []


def _broken_bound(wanted: inspect.Type, value: Any) -> str | None:
    """The one bound that a number of the right type breaks."""
    if isinstance(wanted, inspect.UnionType):
        return next((text for part in wanted.types if (text := _broken_bound(part, value))), None)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    if not isinstance(wanted, inspect.FloatType | inspect.IntType):
        return None
    if isinstance(wanted, inspect.IntType) and isinstance(value, float):
        return None
    return next(
        (text for bound, text, holds in _bounds(wanted) if not holds(value, bound)),
        None,
    )


def _bounds(
    wanted: inspect.FloatType | inspect.IntType,
) -> list[tuple[float, str, Callable[[float, float], bool]]]:
    table = [
        (wanted.ge, "{} or more", lambda value, bound: value >= bound),
        (wanted.gt, "more than {}", lambda value, bound: value > bound),
        (wanted.le, "{} or less", lambda value, bound: value <= bound),
        (wanted.lt, "less than {}", lambda value, bound: value < bound),
    ]
    return [
        (bound, text.format(f"{bound:g}" if isinstance(bound, float) else bound), holds)
        for bound, text, holds in table
        if bound is not None
    ]


def _wanted(wanted: inspect.Type) -> str:
    """What a value of this type is called."""
    if isinstance(wanted, inspect.UnionType):
        return " or ".join(_wanted(part) for part in wanted.types)
    if isinstance(wanted, inspect.LiteralType):
        return " or ".join(show(value).strip('"') for value in wanted.values)
    if isinstance(wanted, inspect.IntType | inspect.FloatType):
        return _wanted_number(wanted)
    if isinstance(wanted, inspect.TupleType):
        return f"a list of {len(wanted.item_types)} values, each {_wanted(wanted.item_types[0])}"
    if isinstance(wanted, inspect.ListType | inspect.VarTupleType):
        return f"a list, each value {_wanted(wanted.item_type)}"
    return _NOUNS[type(wanted)]


def _wanted_number(wanted: inspect.IntType | inspect.FloatType) -> str:
    noun = "a whole number" if isinstance(wanted, inspect.IntType) else "a finite number"
    if wanted.ge is not None and wanted.le is not None:
        return f"{noun} from {wanted.ge} to {wanted.le}"
    return ", ".join([noun, *(text for _, text, _ in _bounds(wanted))])


_NOUNS: dict[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
    inspect.DictType: "a section with keys",
    inspect.AnyType: "any value",
}

_PYTHON_TYPES: dict[type[inspect.Type], type] = {
    inspect.StrType: str,
    inspect.NoneType: type(None),
    inspect.DictType: Mapping,
}
"""The types that items of mappings have, as plain values; others are not told apart."""


def check_each_once(
    key: str, values: Sequence[Any], *, hint: str, show: Callable[[Any], str] = str
) -> None:
    """Raise JobError where a value of `key` is there more than once, as it would be shown."""
    shown = [show(value) for value in values]
    twice = next((text for text in shown if shown.count(text) > 1), None)
    if twice is not None:
        message = f"{key} has {twice} {shown.count(twice)} times"
        raise JobError(message, hint=f"list each once; {hint}")


_MINUTES = re.compile(r"\d+(?:\.\d+)?")
_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")
_CLOCK_MIN = {
    # days given, number of fields -> minutes of a unit of each field
    (False, 2): (1, 1 / 60),
    (False, 3): (60, 1, 1 / 60),
    (True, 1): (60,),
    (True, 2): (60, 1),
    (True, 3): (60, 1, 1 / 60),
}
"""sbatch's forms: MM, MM:SS, H:MM:SS, D-H, D-H:MM and D-H:MM:SS."""
_DAY_MIN = 24 * 60


def parse_minutes(text: str, *, origin: str) -> float:
    """A time limit, written as minutes or in one of sbatch's forms, in minutes.

    Raises JobError, which names `origin`.
    """
    stripped = text.strip()
    if _MINUTES.fullmatch(stripped):
        return float(stripped)
    match = _CLOCK.fullmatch(stripped)
    fields = match["clock"].split(":") if match else []
    units = _CLOCK_MIN.get((bool(match and match["days"]), len(fields)))
    if match is None or units is None:
        raise JobError(
            f"{origin} {text}: must be a time limit in minutes, as H:MM:SS, or as D-HH:MM:SS",
            hint=f"for example {origin} 90, {origin} 1:30:00 or {origin} 2-00:00:00",
        )
    clock_min = sum(int(field) * unit for field, unit in zip(fields, units, strict=True))
    return int(match["days"] or 0) * _DAY_MIN + clock_min
