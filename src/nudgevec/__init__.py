"""nudgevec: better vector search from a handful of labelled queries, without touching the model."""

from nudgevec.corpus import ArrayCorpus, Corpus, ParquetCorpus
from nudgevec.evaluate import compare, evaluate
from nudgevec.labelling.log import LabelLog
from nudgevec.patch import Patch
from nudgevec.stores import open_store
from nudgevec.sweep.curve import Curve
from nudgevec.tune import NudgeM, NudgeMN, NudgeN, NudgeNU

__version__ = "0.1.0"

__all__ = [
    "ArrayCorpus",
    "Corpus",
    "Curve",
    "LabelLog",
    "NudgeM",
    "NudgeMN",
    "NudgeN",
    "NudgeNU",
    "ParquetCorpus",
    "Patch",
    "compare",
    "evaluate",
    "open_store",
]
