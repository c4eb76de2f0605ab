"""nudgevec: better vector search from labelled queries, without touching the embedding model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nudgevec.core.curve import Choice as Choice
    from nudgevec.core.curve import Curve as Curve
    from nudgevec.core.curve import QueryCurves as QueryCurves
    from nudgevec.corpus import ArrayCorpus as ArrayCorpus
    from nudgevec.corpus import Corpus as Corpus
    from nudgevec.corpus import ParquetCorpus as ParquetCorpus
    from nudgevec.engines import Engine as Engine
    from nudgevec.evaluation import Comparison as Comparison
    from nudgevec.evaluation import Evaluation as Evaluation
    from nudgevec.evaluation import Score as Score
    from nudgevec.evaluation import compare as compare
    from nudgevec.evaluation import evaluate as evaluate
    from nudgevec.feedback.event import Event as Event
    from nudgevec.feedback.log import LabelLog as LabelLog
    from nudgevec.patch import Patch as Patch
    from nudgevec.patch import PatchedCorpus as PatchedCorpus
    from nudgevec.runs.folder import SavedRun as SavedRun
    from nudgevec.runs.pipeline import Prepared as Prepared
    from nudgevec.runs.pipeline import QuerySet as QuerySet
    from nudgevec.runs.pipeline import Run as Run
    from nudgevec.runs.tuning import tune as tune
    from nudgevec.search import BeforeAfter as BeforeAfter
    from nudgevec.stores import open_store as open_store
    from nudgevec.stores.base import Store as Store
    from nudgevec.stores.ledger import Status as Status
    from nudgevec.tuners import Nudge as Nudge
    from nudgevec.tuners import NudgeM as NudgeM
    from nudgevec.tuners import NudgeMN as NudgeMN
    from nudgevec.tuners import NudgeN as NudgeN
    from nudgevec.tuners import NudgeNU as NudgeNU
    from nudgevec.tuners import Tuner as Tuner

# Names are imported when they are used: compiled code takes half a second to load.
_HOME = {
    "ArrayCorpus": "corpus",
    "BeforeAfter": "search",
    "Choice": "core.curve",
    "Comparison": "evaluation",
    "Corpus": "corpus",
    "Curve": "core.curve",
    "Engine": "engines",
    "Evaluation": "evaluation",
    "Event": "feedback.event",
    "LabelLog": "feedback.log",
    "Nudge": "tuners",
    "NudgeM": "tuners",
    "NudgeMN": "tuners",
    "NudgeN": "tuners",
    "NudgeNU": "tuners",
    "ParquetCorpus": "corpus",
    "Patch": "patch",
    "PatchedCorpus": "patch",
    "Prepared": "runs.pipeline",
    "QueryCurves": "core.curve",
    "QuerySet": "runs.pipeline",
    "Run": "runs.pipeline",
    "SavedRun": "runs.folder",
    "Score": "evaluation",
    "Status": "stores.ledger",
    "Store": "stores.base",
    "Tuner": "tuners",
    "compare": "evaluation",
    "evaluate": "evaluation",
    "open_store": "stores",
    "tune": "runs.tuning",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nudgevec' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"nudgevec.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
