"""`tf.flags` on absl: flags may be read before the command line is parsed, and unknown ones are ignored.

A program defines its flags, then reads them:

    tf.flags.DEFINE_integer("steps", 100, "How many steps to train.")
    for step in range(tf.flags.FLAGS.steps): ...

The flags are absl's own (`absl.flags.FLAGS`), so libraries that use absl share them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags as absl_flags

from penstock.face.missing import nearest

# Help lists flags by the module that defines them: the program's, not this one.
absl_flags.disclaim_key_flags()

# The parameter names of DEFINE_* in the first TensorFlow versions.
_OLD_PARAMETERS = {"flag_name": "name", "default_value": "default", "docstring": "help"}
_SHORT_HELP = {"--help", "-help", "-?", "--helpshort", "-helpshort"}
_FULL_HELP = {"--helpfull", "-helpfull"}


class LazyFlags:
    """absl's flag values, parsed from `sys.argv` when a value is first read.

    >>> lazy = LazyFlags(absl_flags.FlagValues())
    >>> lazy.is_parsed()
    False
    """

    __slots__ = ("_lazily_parsed", "_values")

    _values: absl_flags.FlagValues
    _lazily_parsed: bool

    def __init__(self, values: absl_flags.FlagValues) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_lazily_parsed", False)

    def __call__(self, argv: Sequence[str], known_only: bool = False) -> list[str]:
        """Parses `argv`, program name first, and returns the arguments that are not flags."""
        rest: list[str] = self._values(argv, known_only=known_only)
        object.__setattr__(self, "_lazily_parsed", False)
        return rest

    def _parse_flags(self, args: Sequence[str] | None = None) -> list[str]:
        # TensorFlow 1.x programs call this by name.
        argv = sys.argv if args is None else [sys.argv[0], *args]
        return self(argv, known_only=True)[1:]

    def _parse_or_help(self, argv: Sequence[str]) -> list[str]:
        rest = self(argv, known_only=True)
        options = set(rest[1 : rest.index("--")] if "--" in rest else rest[1:])
        if options & (_SHORT_HELP | _FULL_HELP):
            _show_help(self._values, full=bool(options & _FULL_HELP))
            # This is absl's exit status, which scripts around a program may rely on.
            sys.exit(1)
        return rest

    def _ensure_parsed(self) -> None:
        if not self._values.is_parsed():
            self._parse_or_help(sys.argv)
            object.__setattr__(self, "_lazily_parsed", True)

    def _flag_added(self) -> None:
        # A module read its flags before this one was defined, so the next read must parse the command line again.
        if self._lazily_parsed:
            self._values.unparse_flags()

    def __getattr__(self, name: str) -> Any:
        values = self._values
        if name in values or name in ("__flags", "flag_values_dict"):
            self._ensure_parsed()
        if name in values or hasattr(values, name):
            return getattr(values, name)
        if name == "__flags":
            return vars(values)[name]
        close = ", ".join(f"--{each}" for each in nearest(name, values)) or "none"
        raise AttributeError(f"No flag '{name}' is defined. The nearest that are: {close}.", name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._values, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._values, name)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, flag: Any) -> None:
        self._values[name] = flag

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *self._values]


FLAGS = LazyFlags(absl_flags.FLAGS)


def parse(argv: Sequence[str]) -> list[str]:
    """Parse the known flags in `argv`, program name first, and return the rest; show help and exit if asked for.

    >>> parse(["train.py", "--unknown=1", "data.csv"])
    ['train.py', '--unknown=1', 'data.csv']
    """
    return FLAGS._parse_or_help(argv)


def _show_help(values: absl_flags.FlagValues, full: bool) -> None:
    program = sys.modules["__main__"]
    print((program.__doc__ or f"USAGE: {sys.argv[0]} [flags]").strip())
    print("flags:\n")
    print(values.get_help() if full else values.main_module_help())
    if not full:
        print("\n--helpfull lists the flags of all modules.")


def _define(absl_define: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(absl_define)
    def define(*args: Any, **kwargs: Any) -> Any:
        renamed = {_OLD_PARAMETERS.get(key, key): value for key, value in kwargs.items()}
        holder = absl_define(*args, **renamed)
        FLAGS._flag_added()
        return holder

    return define


DEFINE = _define(absl_flags.DEFINE)
DEFINE_alias = _define(absl_flags.DEFINE_alias)
DEFINE_bool = _define(absl_flags.DEFINE_bool)
DEFINE_boolean = _define(absl_flags.DEFINE_boolean)
DEFINE_enum = _define(absl_flags.DEFINE_enum)
DEFINE_enum_class = _define(absl_flags.DEFINE_enum_class)
DEFINE_flag = _define(absl_flags.DEFINE_flag)
DEFINE_float = _define(absl_flags.DEFINE_float)
DEFINE_integer = _define(absl_flags.DEFINE_integer)
DEFINE_list = _define(absl_flags.DEFINE_list)
DEFINE_multi = _define(absl_flags.DEFINE_multi)
DEFINE_multi_enum = _define(absl_flags.DEFINE_multi_enum)
DEFINE_multi_enum_class = _define(absl_flags.DEFINE_multi_enum_class)
DEFINE_multi_float = _define(absl_flags.DEFINE_multi_float)
DEFINE_multi_integer = _define(absl_flags.DEFINE_multi_integer)
DEFINE_multi_string = _define(absl_flags.DEFINE_multi_string)
DEFINE_spaceseplist = _define(absl_flags.DEFINE_spaceseplist)
DEFINE_string = _define(absl_flags.DEFINE_string)
