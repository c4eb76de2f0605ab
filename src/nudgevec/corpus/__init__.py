"""Documents as one stream of blocks, whatever holds them.

A corpus is ``ids`` + ``dim`` + ``take(ids)`` + ``blocks()``. A NumPy array (in memory or memory-mapped) becomes one
through ``ArrayCorpus``, a folder of Parquet files through ``ParquetCorpus``.
"""

from nudgevec.corpus.arrays import ArrayCorpus
from nudgevec.corpus.base import Corpus
from nudgevec.corpus.parquet import ParquetCorpus
from nudgevec.corpus.reader import Reader

__all__ = ["ArrayCorpus", "Corpus", "ParquetCorpus", "Reader"]
