"""Make a checked value of the plain values of a job or a profile, and put what msgspec says of a
mistake into the words of the user.
"""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest, nearest_first
from hpcdist.job.spec import LARGEST

Path = tuple[str, ...]
Origin = Callable[[Path], str]
"""Path of a key -> the name of the place its value came from: a job file, a flag, or --set."""

_Section = TypeVar("_Section", bound=msgspec.Struct)

_SHOWN_LENGTH = 60
_ABOUT_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`")
_OUT_OF_BOUNDS = re.compile(r"Expected `\w+` (>=|>|<=|<) (\S+)")
_BOUNDS = {">=": "{} or more", ">": "more than {}", "<=": "{} or less", "<": "less than {}"}


def convert_values(
    values: Mapping[str, Any], struct: type[_Section], origin: Origin | str, *, whole: str = "a job"
) -> _Section:
    """Return the struct of the values, as msgspec converts them.

    Raises JobError for the first key that the struct cannot take: the key, the value, where it came
    from, and what it must be. `origin` may be the one place of all values; `whole` is what messages
    call the thing that they describe together.
    """
    try:
        return msgspec.convert(values, struct)
    except msgspec.ValidationError as error:
        place = origin if callable(origin) else lambda _: str(origin)
        raise _explained(str(error), values, struct, place, whole) from None


def _explained(
    text: str, value: Any, struct: type[msgspec.Struct], origin: Origin, whole: str
) -> JobError:
    """Return an error of msgspec, such as "Expected `int` >= 1 - at `$.resources.nodes`", in the
    words of the user."""
    problem, _, place = text.partition(" - at `$")
    annotation: Any = struct
    path: Path = ()
    field = None
    for key in re.findall(r"\.(\w+)", place):  # an item of a list is shown with its list
        if is_struct(annotation):
            fields = msgspec.structs.fields(annotation)
            field = next(field for field in fields if field.name == key)
            annotation, value, path = _annotations(annotation)[key], value[key], (*path, key)
    known = getattr(annotation, "__struct_fields__", ())
    about = _ABOUT_FIELD.match(problem)
    hint = ""
    if known and about and about[1] == "contains unknown":
        return _unknown((*path, about[2]), known, struct, origin, whole)
    if known and about:
        path, wanted = (*path, about[2]), inspect.type_info(_annotations(annotation)[about[2]])
        hint = f"add the key {about[2]}: {wanted_words(wanted)}"
        return JobError(f"{origin(path)}: {dotted(path)} is missing", hint=hint)
    wanted = inspect.type_info(annotation)
    must = wanted_words(wanted)
    if known:
        must, hint = "a section with keys", f"{dotted(path)} takes: {', '.join(known)}"
        word, _, rest = str(value).partition(" ")
        if rest and word in known:
            hint = f"there is no colon after {word}: write {word}: {rest}"
    elif isinstance(wanted, inspect.DictType) and isinstance(value, Mapping):
        # One item of the mapping is wrong, not the whole.
        _, of_items = typing.get_args(annotation)
        key = next(key for key, item in value.items() if not accepts(of_items, item))
        path, value, must = (*path, key), value[key], wanted_words(wanted.value_type)
        quotes = _quotes_hint(wanted.value_type, value)
        hint = quotes or f"correct {dotted(path)}, or remove it"
    elif field is not None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if (bound := _OUT_OF_BOUNDS.match(problem)) and is_number and math.isfinite(value):
            must = _BOUNDS[bound[1]].format(f"{float(bound[2]):.15g}")
        hint = _hint(value, wanted, field, dotted(path), origin(path))
    message = f"{origin(path)}: {dotted(path)} is {show(value)}, must be {must}"
    return JobError(message, hint=hint)


def _unknown(
    path: Path, known: Sequence[str], struct: type[msgspec.Struct], origin: Origin, whole: str
) -> JobError:
    """Return the error for a key that is none: it may be misspelled, or of another section."""
    *section, key = path
    leaves = list(_leaves(struct, ()))
    near = nearest(key, known)
    suggestion = near and dotted((*section, near))
    like = nearest(key, [leaf[-1] for leaf in leaves]) if near is None else None
    for name in (like, key):  # the last one that is there counts
        suggestion = next((dotted(leaf) for leaf in leaves if leaf[-1] == name), suggestion)
    listed = f"{dotted(tuple(section)) or whole} takes: "
    listed += ", ".join(nearest_first(key, known) if near else known)
    return JobError(
        f"{origin(path)}: {dotted(path)} is not a known key",
        hint=f"did you mean {suggestion}? {listed}" if suggestion else listed,
    )


def _hint(
    value: Any, wanted: inspect.Type, field: msgspec.structs.FieldInfo, key: str, origin: str
) -> str:
    if isinstance(value, str):
        names = [name for name in literals(wanted) if isinstance(name, str)]
        if near := "cuda" if value == "gpu" and "cuda" in names else nearest(value, names):
            return f"did you mean {near}?"
    if quotes := _quotes_hint(wanted, value):
        return quotes
    if field.required:
        return f"give {key} a value: {wanted_words(wanted)}"
    if origin.startswith("--"):  # without it, the job file's value counts, if there is one
        return f"correct {origin}, or leave it out"
    default = field.default
    if default is msgspec.NODEFAULT:
        default = field.default_factory()
    return f"leave {key} out for its default, {show(default)}"


def _quotes_hint(wanted: inspect.Type, value: Any) -> str | None:
    """YAML reads 4, 007 and true as numbers and booleans: quotes make them text."""
    parts = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
    types = [part.type if isinstance(part, inspect.Metadata) else part for part in parts]
    if isinstance(value, bool | int | float) and any(isinstance(t, inspect.StrType) for t in types):
        return "write the value in quotes, to make it text"
    if isinstance(value, list) and isinstance(wanted, inspect.ListType):
        bare = [item for item in value if _quotes_hint(wanted.item_type, item)]
        if bare and all(isinstance(item, str) or item in bare for item in value):
            return f"write {show(bare[0])} in quotes, to make it text: '{show(bare[0])}'"
    return None


def accepts(annotation: Any, value: Any) -> bool:
    """Return True if a field with this annotation takes the value."""
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return True


def annotation_at(struct: type[msgspec.Struct], path: Path) -> Any | None:
    """The annotation of the field that a dotted path leads to; None where there is none."""
    found: Any = struct
    for key in path:
        if not is_struct(found):
            return None
        found = _annotations(found).get(key)
    return found


def dotted(path: Path) -> str:
    """A key as the user writes it: resources.nodes."""
    return ".".join(path)


def show(value: Any) -> str:
    """A value in a message: as JSON, which YAML reads too, and not too long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."


def is_struct(annotation: Any) -> bool:
    """Return whether an annotation is that of a section."""
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _annotations(struct: Any) -> dict[str, Any]:
    return typing.get_type_hints(struct, include_extras=True)


def _leaves(struct: type[msgspec.Struct], path: Path) -> Iterator[Path]:
    for key, annotation in _annotations(struct).items():
        if is_struct(annotation):
            yield from _leaves(annotation, (*path, key))
        else:
            yield (*path, key)


def literals(wanted: inspect.Type) -> list[Any]:
    """Return the values that a type lists one by one."""
    if isinstance(wanted, inspect.LiteralType):
        return list(wanted.values)
    if isinstance(wanted, inspect.UnionType):
        return [value for part in wanted.types for value in literals(part)]
    return []


def wanted_words(wanted: inspect.Type) -> str:
    """Return the name of a type in messages."""
    if isinstance(wanted, inspect.Metadata):
        return str((wanted.extra_json_schema or {}).get("description", ""))
    if isinstance(wanted, inspect.UnionType):
        return " or ".join(wanted_words(part) for part in wanted.types)
    if isinstance(wanted, inspect.LiteralType):
        return " or ".join(show(value).strip('"') for value in wanted.values)
    if isinstance(wanted, inspect.TupleType):
        return (
            f"a list of {len(wanted.item_types)} values, each {wanted_words(wanted.item_types[0])}"
        )
    if isinstance(wanted, inspect.ListType | inspect.VarTupleType):
        return f"a list, each value {wanted_words(wanted.item_type)}"
    return _NOUNS.get(type(wanted)) or _number_words(wanted)


def _number_words(wanted: Any) -> str:
    noun = "a whole number" if isinstance(wanted, inspect.IntType) else "a finite number"
    at_most = None if wanted.le == LARGEST else wanted.le
    if wanted.ge is not None and at_most is not None:
        return f"{noun} from {wanted.ge} to {at_most}"
    bounds = {">=": wanted.ge, ">": wanted.gt, "<=": at_most, "<": wanted.lt}
    given = [_BOUNDS[sign].format(f"{at:.15g}") for sign, at in bounds.items() if at is not None]
    return ", ".join([noun, *given])


_NOUNS: dict[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
    inspect.DictType: "a section with keys",
    inspect.AnyType: "any value",
    inspect.StructType: "a section with its keys",
}


def check_each_once(key: str, values: Sequence[Any], *, hint: str) -> None:
    """Raise JobError where a value of `key` is there more than once."""
    if twice := [value for value in values if values.count(value) > 1]:
        message = f"{key} has {show(twice[0])} {values.count(twice[0])} times"
        raise JobError(message, hint=f"list each once; {hint}")


_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")


def parse_minutes(text: str, *, origin: str) -> float:
    """A time limit, written as minutes or in one of sbatch's forms, in minutes: MM, MM:SS, H:MM:SS,
    D-H, D-H:MM and D-H:MM:SS. Raises JobError, which names `origin`."""
    stripped = text.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", stripped):
        return float(stripped)
    match = _CLOCK.fullmatch(stripped)
    if match is None:
        raise JobError(
            f"{origin} {text}: must be a time limit in minutes, as H:MM:SS, or as D-HH:MM:SS",
            hint=f"for example {origin} 90, {origin} 1:30:00 or {origin} 2-00:00:00",
        )
    fields = [int(field) for field in match["clock"].split(":")]
    if not match["days"] and len(fields) < 3:
        fields.insert(0, 0)
    units_min = (60, 1, 1 / 60)
    clock_min = sum(field * unit for field, unit in zip(fields, units_min, strict=False))
    return int(match["days"] or 0) * 24 * 60 + clock_min
