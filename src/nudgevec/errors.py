"""Every exception and warning nudgevec raises, in one place.

NudgeError
├── InputError (also a ValueError)      something the caller passed in cannot be used
│   ├── VectorError                     NaN, infinity, a zero row, a wrong shape or type
│   ├── LabelError                      an unknown id, a row out of range, no usable label
│   └── OptionError                     an unknown metric or an option out of its range
├── RemoteError                         a server that refuses, or does not answer
├── StoreError                          a store that is not as it should be, or a patch that does not belong there
├── PatchError                          a patch that does not belong to these vectors, or a bad file
├── NotFittedError (also an AttributeError)   a tuner that is used before ``fit``
└── MissingExtraError (also an ImportError)   an optional dependency that is not installed

NudgeWarning (a UserWarning)            the result is right, but look at your data
"""

from __future__ import annotations

__all__ = [
    "InputError",
    "LabelError",
    "MissingExtraError",
    "NotFittedError",
    "NudgeError",
    "NudgeWarning",
    "OptionError",
    "PatchError",
    "RemoteError",
    "StoreError",
    "VectorError",
]


class NudgeError(Exception):
    """Base class of all errors raised by nudgevec."""


class InputError(NudgeError, ValueError):
    """Something the caller passed in cannot be used."""


class VectorError(InputError):
    """Vectors with NaN, infinity, a zero row, a wrong shape or a wrong type."""


class LabelError(InputError):
    """Labels that name unknown documents, are out of range, or are missing altogether."""


class OptionError(InputError):
    """An unknown metric, or an option outside its range."""


class RemoteError(NudgeError):
    """A server that refuses a request, or does not answer after several tries."""


class StoreError(NudgeError):
    """A vector store that is not as it should be, or a patch that must not be put there."""


class PatchError(NudgeError):
    """A patch that does not belong to these vectors, or a file that is not a patch."""


class NotFittedError(NudgeError, AttributeError):
    """A tuner was asked for its result before ``fit`` was called."""


class MissingExtraError(NudgeError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'nudgevec[{extra}]'")


class NudgeWarning(UserWarning):
    """The result is right, but something about the input deserves a look."""
