"""One exception per status code, as TensorFlow raises them.

The tree:

    OpError
    ├── CancelledError             ├── ResourceExhaustedError
    ├── UnknownError               ├── FailedPreconditionError
    ├── InvalidArgumentError       ├── AbortedError
    ├── DeadlineExceededError      ├── OutOfRangeError
    ├── NotFoundError              ├── UnimplementedError
    ├── AlreadyExistsError         ├── InternalError
    ├── PermissionDeniedError      ├── UnavailableError
    └── UnauthenticatedError       └── DataLossError
    TypeError  ── OperatorNotAllowedInGraphError
    ValueError ── InaccessibleTensorError

>>> try:
...     raise NotFoundError(None, "save/RestoreV2", "no checkpoint at '/tmp/model'")
... except OpError as error:
...     error.error_code == NOT_FOUND, error.op_name
(True, 'save/RestoreV2')
"""

from __future__ import annotations

from typing import Any, ClassVar

OK = 0
CANCELLED = 1
UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
ALREADY_EXISTS = 6
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
DATA_LOSS = 15
UNAUTHENTICATED = 16

_TYPE_OF_CODE: dict[int, type[OpError]] = {}


class OpError(Exception):
    """An op failed while a graph was built or run.

    `op` is the Operation that failed, its name if only the name is known, or None. A message alone is enough:

    >>> str(CancelledError("queue is closed"))
    'queue is closed'
    """

    _code: ClassVar[int] = UNKNOWN

    def __init_subclass__(cls, *, code: int | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if code is not None:
            cls._code = code
            _TYPE_OF_CODE[code] = cls

    def __init__(
        self, node_def: Any = None, op: Any = None, message: str | bytes | None = None, error_code: int | None = None
    ) -> None:
        if message is None:
            node_def, message = None, str(node_def)
        text = message.decode("utf-8", "replace") if isinstance(message, bytes) else message
        super().__init__(text)
        self._node_def = node_def
        self._op = op
        self._message = text
        self._error_code = type(self)._code if error_code is None else error_code

    @property
    def op(self) -> Any:
        """The Operation that failed, or None if it is not known or known only by name (see `op_name`)."""
        return None if isinstance(self._op, str) else self._op

    @property
    def op_name(self) -> str | None:
        """Name of the node that failed, from the Operation, the name or the NodeDef given; else None.

        A node of a body that is known only by name is called `body::name`.
        """
        if isinstance(self._op, str):
            return getattr(self._op, "path", self._op) or None
        named = self._op if self._op is not None else self._node_def
        return None if named is None else str(named.name)

    @property
    def node_def(self) -> Any:
        """The NodeDef of the op that failed, or None."""
        return self._node_def

    @property
    def message(self) -> str:
        """The description of the error, without the place where the op was made."""
        return self._message

    @property
    def error_code(self) -> int:
        """The status code, such as `errors.NOT_FOUND`."""
        return self._error_code

    def __str__(self) -> str:
        # A run fails far from the line that made the op, so the message shows that line if the op recorded it.
        defined = getattr(self.op, "definition", "")
        return f"{self._message}\n\nThe op '{self.op_name}' is defined at {defined}" if defined else self._message

    def __reduce__(self) -> tuple[Any, ...]:
        # An Operation belongs to its graph and cannot leave the process, but its name can.
        return _rebuild, (type(self), self._node_def, self.op_name, self._message, self._error_code)


def _rebuild(cls: type[OpError], node_def: Any, op_name: str | None, message: str, code: int) -> OpError:
    error = cls.__new__(cls)
    OpError.__init__(error, node_def, op_name, message, code)
    return error


class CancelledError(OpError, code=CANCELLED):
    """The step or the op was cancelled, for example because its queue was closed or its session ended."""


class UnknownError(OpError, code=UNKNOWN):
    """The cause has no status of its own."""


class InvalidArgumentError(OpError, code=INVALID_ARGUMENT):
    """An op received values it cannot accept, for example shapes that do not match at run time."""


class DeadlineExceededError(OpError, code=DEADLINE_EXCEEDED):
    """The time allowed for the operation passed before it finished."""


class NotFoundError(OpError, code=NOT_FOUND):
    """A file, a checkpoint key, a resource or a device does not exist."""


class AlreadyExistsError(OpError, code=ALREADY_EXISTS):
    """The object to create already exists."""


class PermissionDeniedError(OpError, code=PERMISSION_DENIED):
    """The caller may not do this, for example read that file."""


class UnauthenticatedError(OpError, code=UNAUTHENTICATED):
    """The caller gave no valid credentials."""


class ResourceExhaustedError(OpError, code=RESOURCE_EXHAUSTED):
    """Memory, disk or a quota ran out."""


class FailedPreconditionError(OpError, code=FAILED_PRECONDITION):
    """The system is not in the state that the op needs, for example a variable is not initialised."""


class AbortedError(OpError, code=ABORTED):
    """The operation was aborted because of a concurrent event, for example a restarted task."""


class OutOfRangeError(OpError, code=OUT_OF_RANGE):
    """Past the end: an input is used up, or a closed queue is empty."""


class UnimplementedError(OpError, code=UNIMPLEMENTED):
    """The operation is not supported here."""


class InternalError(OpError, code=INTERNAL):
    """An invariant of the runtime broke."""


class UnavailableError(OpError, code=UNAVAILABLE):
    """A task cannot be reached now; trying again may help."""


class DataLossError(OpError, code=DATA_LOSS):
    """Stored data is damaged, for example a checksum does not match."""


class OperatorNotAllowedInGraphError(TypeError):
    """A Python operation that needs a value, such as `if tensor:`, was used on a symbolic tensor."""


class InaccessibleTensorError(ValueError):
    """A tensor was used outside the function or branch that defines it."""


def exception_type_from_error_code(error_code: int) -> type[OpError]:
    """The exception class of a status code.

    >>> exception_type_from_error_code(NOT_FOUND).__name__
    'NotFoundError'
    """
    return _TYPE_OF_CODE[error_code]


def error_code_from_exception_type(cls: type[BaseException]) -> int:
    """The status code of an exception class, `UNKNOWN` for classes outside the tree.

    >>> error_code_from_exception_type(AbortedError)
    10
    """
    return cls._code if issubclass(cls, OpError) else UNKNOWN


def error_from_code(code: int, message: str | bytes, op_name: str | None = None) -> OpError:
    """The exception for a status that arrived from another task; an unknown code becomes UnknownError.

    >>> error_from_code(OUT_OF_RANGE, "the queue is empty", "fifo/dequeue")
    OutOfRangeError('the queue is empty')
    """
    cls = _TYPE_OF_CODE.get(code)
    return UnknownError(None, op_name, message, code) if cls is None else cls(None, op_name, message)
