"""From files and stores to vectors with labels: readers, embedders, and the split into train, validation and test."""
