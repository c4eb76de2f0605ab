"""One event of a label log, and what makes it valid."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from dataclasses import dataclass

from nudgevec.errors import LabelError
from nudgevec.text.splits import normalise

# Largest size of a value and of a signal's weight: their products and the sums of many of them stay finite and precise.
MAX_VALUE = 1e6
# Largest distance of a time from 1970 in seconds, for events of the past.
_MAX_TIME = 1e11
_DAY = 86400.0


@dataclass(frozen=True)
class Event:
    """One piece of feedback: a document received a signal for a query.

    Attributes
    ----------
    query : str
        Text of the query.
    document : str
        Id of the document.
    signal : str
        Kind of feedback, for example "click" or "thumbs_down"; ``LabelLog.weights`` lists them.
    value : float
        Factor of the signal's weight, for example the grade of a judgement.
    propensity : float
        Probability that the document was seen at its position, above 0 and at most 1.
    time : float
        Seconds since 1970; 0 if unknown.
    source : str
        Where the event comes from, for example a client or a file.

    Examples
    --------
    >>> Event("reset password", "faq-7", "click").value
    1.0
    """

    query: str
    document: str
    signal: str = "judgement"
    value: float = 1.0
    propensity: float = 1.0
    time: float = 0.0
    source: str = ""


def check_event(event: Event, weights: Mapping[str, float]) -> None:
    """Raise LabelError for an event that cannot be added to a log with these weights of signals."""
    for name in ("query", "document", "signal", "source"):
        text = getattr(event, name)
        if not isinstance(text, str) or not _is_unicode(text):
            raise LabelError(f"the {name} of the event is not a text of valid Unicode: {text!r:.80}")
    if not normalise(event.query):
        raise LabelError("the event has no query text")
    if not event.document:
        raise LabelError(f"the event of query {event.query!r} has no document id")
    if event.signal not in weights:
        raise LabelError(
            f"unknown signal {event.signal!r}: use one of {', '.join(weights)}, or set a weight for it "
            "first (nudgevec labels signals LOG --set NAME=WEIGHT)"
        )
    if not is_bounded(event.value, MAX_VALUE):
        raise LabelError(f"value must be a number from -1e6 to 1e6, not {event.value!r:.40}")
    if not is_bounded(event.time, _MAX_TIME):
        raise LabelError(f"time must be a number of seconds since 1970, not {event.time!r:.40}")
    if event.time > clock.time() + _DAY:
        raise LabelError(f"the time {event.time} is in the future: times are in seconds since 1970")
    if not is_bounded(event.propensity, 1.0) or event.propensity <= 0:
        problem = f"not {event.propensity!r:.40}"
        raise LabelError(f"propensity must be a probability greater than 0 and at most 1, {problem}")


def is_bounded(number: object, largest: float) -> bool:
    """Whether a number lies between ``-largest`` and ``largest``; NaN does not."""
    return isinstance(number, (int, float)) and -largest <= number <= largest


def _is_unicode(text: str) -> bool:
    """Whether a text has bytes in UTF-8, which a lone surrogate has not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_usable(event: Event, weights: Mapping[str, float]) -> bool:
    """Whether an event counts; an event that ``check`` refuses now may be in a log of an earlier version."""
    return (
        is_bounded(weights.get(event.signal), MAX_VALUE)
        and is_bounded(event.value, MAX_VALUE)
        and is_bounded(event.time, _MAX_TIME)
        and is_bounded(event.propensity, 1.0)
    )
