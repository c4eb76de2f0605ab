"""Every exception and warning of nudgevec.

NudgeError
├── InputError (also a ValueError)      invalid input
│   ├── VectorError                     NaN, infinity, a zero vector, a wrong shape or type
│   ├── LabelError                      an unknown id, a row out of range, or no usable label
│   └── OptionError                     an unknown metric, or an option outside its range
├── RemoteError                         a server refuses a request or does not answer
├── StoreError                          a vector store in an unexpected state, or a patch that does not fit it
├── PatchError                          a patch that does not fit the vectors, or an unreadable patch file
├── NotFittedError (also an AttributeError)   a tuner is used before ``fit``
└── MissingExtraError (also an ImportError)   an optional dependency is not installed

NudgeWarning (a UserWarning)            the result is correct, but the input deserves a look
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
    """Invalid input."""


class VectorError(InputError):
    """Vectors with NaN or infinity, a zero vector, or a wrong shape or type."""


class LabelError(InputError):
    """Labels of unknown documents, labels out of range, or no usable label."""


class OptionError(InputError):
    """An unknown name of a metric, method or the like, or an option outside its range."""


class RemoteError(NudgeError):
    """A server refuses a request, or does not answer after several attempts."""


class StoreError(NudgeError):
    """A vector store is in an unexpected state, or a patch does not fit it."""


class PatchError(NudgeError):
    """A patch does not fit the vectors, or a file is not a readable patch."""


class NotFittedError(NudgeError, AttributeError):
    """A result of a tuner is requested before ``fit`` is called."""


class MissingExtraError(NudgeError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    feature : str
        The feature that needs it, as the subject of the message.
    extra : str
        The extra of this package that installs it.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency: pip install 'nudgevec[{extra}]'")


class NudgeWarning(UserWarning):
    """The result is correct, but the input deserves a look."""
