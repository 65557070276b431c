"""HParams: named values of fixed types, which can be set from strings and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_PART = re.compile(
    r"(?P<name>[a-zA-Z][\w.]*)(\[\s*(?P<index>\d+)\s*\])?\s*=\s*((?P<value>[^,\[]*)|\[(?P<values>[^\]]*)\])\s*($|,\s*)"
)


def _as_type(name: str, kind: type, text: Any) -> Any:
    """Parses `text` as a value of `kind`; ValueError if it is not one."""
    try:
        if kind is bool:
            if isinstance(text, bool):
                return text
            known = {"true": True, "True": True, "false": False, "False": False}
            return known[text] if text in known else bool(int(text))
        return kind(text)
    except (TypeError, ValueError):
        raise ValueError(f"Could not parse hparam '{name}' of type '{kind.__name__}' with value '{text}'.") from None


def parse_values(values: str, type_map: Mapping[str, type], ignore_unknown: bool = False) -> dict[str, Any]:
    """The values in a string such as 'rate=0.1,layers=[128,64],name=a,sizes[1]=5', by name.

    >>> parse_values("rate=0.1,layers=[128,64]", {"rate": float, "layers": int})
    {'rate': 0.1, 'layers': [128, 64]}
    """
    found: dict[str, Any] = {}
    position = 0
    while position < len(values):
        match = _PART.match(values, position)
        if match is None:
            raise ValueError(f"Malformed hyperparameter value: {values[position:]}")
        position = match.end()
        name, index = match["name"], match["index"]
        if name not in type_map:
            if ignore_unknown:
                continue
            raise ValueError(f"Unknown hyperparameter type for {name}")
        kind = type_map[name]
        if match["values"] is not None:
            if index is not None or name in found:
                raise ValueError(f"Could not parse hparam '{name}': a list is given more than once, or at an index.")
            items = [item.strip() for item in match["values"].split(",")]
            found[name] = [_as_type(name, kind, item) for item in items if item]
            continue
        value = _as_type(name, kind, match["value"].strip())
        if index is None:
            if name in found:
                raise ValueError(f"Multiple assignments to variable '{name}' in {values}")
            found[name] = value
        else:
            places = found.setdefault(name, {})
            if not isinstance(places, dict) or int(index) in places:
                raise ValueError(f"Multiple assignments to variable '{name}' in {values}")
            places[int(index)] = value
    return found


class HParams:
    """Hyperparameters as attributes.

    >>> hparams = tf.contrib.training.HParams(learning_rate=0.1, layers=[128, 64])
    >>> hparams.parse("learning_rate=0.01").learning_rate
    0.01
    """

    _types: dict[str, tuple[type, bool]]  # for each name: the type, and if it is a list

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any) -> None:
        if hparam_def is not None:
            raise NotImplementedError("HParams: hparam_def, a protocol buffer, is not supported; give the values.")
        self._types = {}
        self._model_structure = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Adds a name with its value, which determines its type."""
        if getattr(self, name, None) is not None:
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        if isinstance(value, (list, tuple)):
            if not value:
                raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
            self._types[name] = (type(value[0]), True)
        else:
            self._types[name] = (type(value), False)
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Sets an existing name to a value of its type."""
        kind, is_list = self._types[name]
        if isinstance(value, list):
            if not is_list:
                raise ValueError(f"Must not pass a list for single-valued parameter: {name}")
            setattr(self, name, [_cast(name, kind, item) for item in value])
        else:
            if is_list:
                raise ValueError(f"Must pass a list for multi-valued parameter: {name}.")
            setattr(self, name, _cast(name, kind, value))

    def del_hparam(self, name: str) -> None:
        """Removes a name, if it exists."""
        if hasattr(self, name):
            delattr(self, name)
            del self._types[name]

    def parse(self, values: str) -> HParams:
        """Sets values from a string: `hparams.parse("rate=0.1,layers=[128,64]")`."""
        parsed = parse_values(values, {name: kind for name, (kind, _) in self._types.items()})
        for name, value in parsed.items():
            if isinstance(value, dict):
                whole = list(getattr(self, name))
                for index, item in value.items():
                    if not self._types[name][1] or index >= len(whole):
                        raise ValueError(f"Could not parse hparam '{name}': there is no element {index}.")
                    whole[index] = item
                value = whole
            elif self._types[name][1] and not isinstance(value, list):
                value = [value]
            self.set_hparam(name, value)
        return self

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Sets values by name."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json: str) -> HParams:
        """Sets values from a JSON object."""
        return self.override_from_dict(json.loads(values_json))

    def to_json(self, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
        """The values as a JSON object, without functions, which JSON does not have."""
        values = {k: v for k, v in self.values().items() if not callable(v)}
        return json.dumps(values, indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """The values by name."""
        return {name: getattr(self, name) for name in self._types}

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a name, or `default`, which must be of its type."""
        if key not in self._types:
            return default
        kind, is_list = self._types[key]
        if default is not None and (isinstance(default, list) != is_list or not _fits(kind, default, is_list)):
            raise ValueError(f"Parameter '{key}' is of type {kind.__name__}; received the default {default!r}.")
        return getattr(self, key)

    def get_model_structure(self) -> Any:
        """The `model_structure` given before."""
        return self._model_structure

    def set_model_structure(self, model_structure: Any) -> None:
        """Keeps a model structure."""
        self._model_structure = model_structure

    def __contains__(self, key: str) -> bool:
        return key in self._types

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"HParams({', '.join(f'{k}={v!r}' for k, v in sorted(self.values().items()))})"


def _fits(kind: type, value: Any, is_list: bool) -> bool:
    try:
        for item in value if is_list else [value]:
            _cast("default", kind, item)
    except ValueError:
        return False
    return True


def _cast(name: str, kind: type, value: Any) -> Any:
    """Casts `value` to `kind` if nothing is lost; else ValueError."""
    refused = ValueError(f"Could not cast hparam '{name}' of type '{kind.__name__}' from value {value!r}")
    if kind is type(None) or value is None or (callable(value) and not isinstance(value, (str, int, float))):
        return value
    if isinstance(value, str) != issubclass(kind, str) or isinstance(value, bool) != (kind is bool):
        raise refused
    if issubclass(kind, int) and not isinstance(value, bool) and int(value) != value:
        raise refused
    convert: Callable[[Any], Any] = kind
    return convert(value)
