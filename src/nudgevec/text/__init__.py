"""From files and stores to labelled vectors: readers, embedders, and the split into train, validation and test."""
