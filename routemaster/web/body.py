"""Bodies of calls: strict decoding, and saying in words which field is wrong and what it should hold.

The words come from the types themselves, so they cannot differ from what is accepted.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from routemaster.errors import InvalidInput

_Body = TypeVar("_Body")
_WHERE = re.compile(r"^(.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")
_NAMED = re.compile(r"^Object (?:contains (unknown)|missing required) field `(.*)`$", re.DOTALL)


def parse(body: bytes, kind: type[_Body]) -> _Body:
    """A body as a struct, or InvalidInput with the field and what was expected."""
    try:
        body.decode()
        return msgspec.json.decode(body, type=kind)
    except (UnicodeDecodeError, RecursionError):
        raise InvalidInput("body", "JSON text in UTF-8, not nested too deeply") from None
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind) from None
    except msgspec.DecodeError as error:
        raise InvalidInput("body", f"valid JSON ({error})") from None


def _explain(said: str, kind: Any) -> InvalidInput:
    match = _WHERE.match(said)
    text, path = (match[1], match["path"] or "") if match else (said, "")
    steps: list[str] = [name for name, _ in _STEP.findall(path) if name]
    expected = _type_at(inspect.type_info(kind), path)
    named = _NAMED.match(text)
    if named:
        field = ".".join([*steps, named[2]])
        if named[1]:
            return InvalidInput(
                field[:100], f"no such field; the fields are {', '.join(_fields_of(expected))}"
            )
        return InvalidInput(field, "to be present")
    return InvalidInput(".".join(steps) or "body", in_words(expected))


def _type_at(known: inspect.Type, path: str) -> inspect.Type:
    """The type at a path such as .grants.publish[0]."""
    for name, _ in _STEP.findall(path):
        known = _without_null(known)
        if name and isinstance(known, inspect.StructType):
            known = next((field.type for field in known.fields if field.encode_name == name), known)
        elif isinstance(known, inspect.ListType | inspect.VarTupleType):
            known = known.item_type
        elif isinstance(known, inspect.DictType):
            known = known.value_type
    return known


def _fields_of(known: inspect.Type) -> list[str]:
    found = _without_null(known)
    return [field.encode_name for field in found.fields] if isinstance(found, inspect.StructType) else []


def _bare(known: Any) -> Any:
    """A type without what the document alone says of it."""
    return _bare(known.type) if isinstance(known, inspect.Metadata) else known


def _without_null(known: inspect.Type) -> inspect.Type:
    known = _bare(known)
    if isinstance(known, inspect.UnionType):
        rest = [bare for one in known.types if not isinstance(bare := _bare(one), inspect.NoneType)]
        structs = [one for one in rest if isinstance(one, inspect.StructType | inspect.ListType)]
        return (structs or rest)[0]
    return known


def in_words(known: Any) -> str:
    """What a field of this type holds."""
    known = _bare(known)
    for kind, words in _WORDS.items():
        if isinstance(known, kind):
            return words(known)
    return "something else"


def _number(known: Any) -> str:
    noun = "a whole number" if isinstance(known, inspect.IntType) else "a number"
    if known.gt is not None and known.le is not None:
        return f"{noun} above {known.gt:g}, of at most {known.le:g}"
    if known.ge is not None and known.le is not None:
        return f"{noun} from {known.ge} to {known.le}"
    if known.ge is not None:
        return f"{noun} of at least {known.ge}"
    return noun


def _union(known: Any) -> str:
    parts = [in_words(one) for one in known.types if not isinstance(one, inspect.NoneType)]
    return " or ".join(parts)


def _list(known: Any) -> str:
    return f"a list, each of it {in_words(known.item_type)}"


_WORDS: dict[type, Callable[[Any], str]] = {
    inspect.UnionType: _union,
    inspect.LiteralType: lambda known: "one of " + ", ".join(known.values),
    inspect.BoolType: lambda _: "true or false",
    inspect.IntType: _number,
    inspect.FloatType: _number,
    inspect.StrType: lambda _: "a text",
    inspect.ListType: _list,
    inspect.VarTupleType: _list,
    inspect.DictType: lambda known: f"an object whose values are each {in_words(known.value_type)}",
    inspect.StructType: lambda known: f"an object with {', '.join(_fields_of(known))}",
}
