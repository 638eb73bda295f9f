"""Patches of the Kubernetes API: JSON merge patch, JSON patch and strategic merge patch.

Sources:
    https://datatracker.ietf.org/doc/html/rfc7386
    https://datatracker.ietf.org/doc/html/rfc6902
    https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md
"""

from __future__ import annotations

import copy
from typing import Any

from farcall_local.kubernetes.errors import BadRequestError, StatusError
from farcall_local.kubernetes.schema import Fields, definitions

_DIRECTIVE, _ORDER, _DELETE, _RETAIN = (
    "$patch",
    "$setElementOrder/",
    "$deleteFromPrimitiveList/",
    "$retainKeys",
)


class PatchError(StatusError):
    """An operation of a JSON patch cannot be carried out."""

    code = 422
    reason = "Invalid"


def merge(document: Any, patch: Any) -> Any:
    """Return a document changed by a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    made = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge(made.get(name), value)
    return made


def strategic(document: Any, patch: Any, definition: str | None) -> Any:
    """Return a document changed by a strategic merge patch.

    Args:
        document: It.
        patch: The patch.
        definition: Name of the document's definition, by which lists are merged.
    """
    return _strategic(document, patch, definitions()[definition] if definition else {})


def _strategic(document: Any, patch: dict[str, Any], fields: Fields) -> Any:
    if patch.get(_DIRECTIVE) == "replace":
        return {name: value for name, value in patch.items() if name != _DIRECTIVE}
    made = dict(document) if isinstance(document, dict) else {}
    if _RETAIN in patch:
        made = {name: value for name, value in made.items() if name in patch[_RETAIN]}
    for name, value in patch.items():
        if name.startswith(_DELETE):
            listed = name.removeprefix(_DELETE)
            made[listed] = [each for each in made.get(listed, ()) if each not in value]
        elif value is None:
            made.pop(name, None)
        elif not name.startswith("$"):
            made[name] = _field(made.get(name), value, fields.get(name, ""))
    return made


def _field(old: Any, value: Any, type_: str) -> Any:
    if isinstance(value, dict):
        if value.get(_DIRECTIVE) == "delete":
            return {}
        return _strategic(old, value, _fields_of(type_))
    key, _, item = type_[1:].partition("]") if type_[:1] == "[" else ("", "", "")
    if not key or not isinstance(value, list):
        return value
    if key == "=":
        return [*(old or ()), *(each for each in value if each not in (old or ()))]
    return _items(list(old or ()), value, key, item)


def _items(old: list[Any], patch: list[Any], key: str, type_: str) -> list[Any]:
    """Merge the items of a list that are of one key."""
    if any(each.get(_DIRECTIVE) == "replace" for each in patch):
        return [each for each in patch if _DIRECTIVE not in each]
    for each in patch:
        at = next((at for at, one in enumerate(old) if one.get(key) == each.get(key)), None)
        if each.get(_DIRECTIVE) == "delete":
            if at is not None:
                del old[at]
        elif at is None:
            old.append(_strategic({}, each, _fields_of(type_)))
        else:
            old[at] = _strategic(old[at], each, _fields_of(type_))
    return old


def _fields_of(type_: str) -> Fields:
    return definitions()[type_[1:]] if type_[:1] == "#" else {}


def json_patch(document: Any, operations: Any) -> Any:
    """Return a document changed by a JSON patch.

    Raises:
        BadRequestError: The patch is none.
        PatchError: An operation cannot be carried out, or a test fails.
    """
    if not isinstance(operations, list):
        raise BadRequestError("error decoding patch: a JSON patch is a list of operations")
    document = copy.deepcopy(document)
    for each in operations:
        if not isinstance(each, dict) or each.get("op") not in _OPERATIONS or "path" not in each:
            raise BadRequestError(f"error decoding patch: {each!r} is no operation")
        try:
            document = _OPERATIONS[each["op"]](document, each)
        except (KeyError, IndexError, ValueError, TypeError):
            raise PatchError(
                f"the server rejected our request due to an error in our request: {each['op']} "
                f"operation does not apply: {each['path']!r} cannot be found"
            ) from None
    return document


def _add(document: Any, each: dict[str, Any]) -> Any:
    return _put(document, _steps(each["path"]), each["value"], insert=True)


def _replace(document: Any, each: dict[str, Any]) -> Any:
    _at(document, _steps(each["path"]))
    return _put(document, _steps(each["path"]), each["value"], insert=False)


def _remove(document: Any, each: dict[str, Any]) -> Any:
    *way, last = _steps(each["path"])
    place = _at(document, way)
    del place[int(last) if isinstance(place, list) else last]
    return document


def _move(document: Any, each: dict[str, Any]) -> Any:
    value = _at(document, _steps(each["from"]))
    _remove(document, {"path": each["from"]})
    return _put(document, _steps(each["path"]), value, insert=True)


def _copy(document: Any, each: dict[str, Any]) -> Any:
    value = copy.deepcopy(_at(document, _steps(each["from"])))
    return _put(document, _steps(each["path"]), value, insert=True)


def _test(document: Any, each: dict[str, Any]) -> Any:
    if _at(document, _steps(each["path"])) != each.get("value"):
        raise PatchError(
            "the server rejected our request due to an error in our request: testing path "
            f"{each['path']} failed"
        )
    return document


_OPERATIONS = {
    "add": _add,
    "replace": _replace,
    "remove": _remove,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def _steps(pointer: str) -> list[str]:
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        raise ValueError(pointer)
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


def _at(document: Any, steps: list[str]) -> Any:
    for step in steps:
        document = document[int(step) if isinstance(document, list) else step]
    return document


def _put(document: Any, steps: list[str], value: Any, *, insert: bool) -> Any:
    if not steps:
        return value
    *way, last = steps
    place = _at(document, way)
    if not isinstance(place, list):
        place[last] = value
    elif insert:
        place.insert(len(place) if last == "-" else int(last), value)
    else:
        place[int(last)] = value
    return document
