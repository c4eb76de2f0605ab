"""The scan over the corpus: which documents at rest can matter."""
