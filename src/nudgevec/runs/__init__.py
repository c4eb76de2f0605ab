"""Runs: a collection read, embedded, split, tuned and measured, and the folder with the result."""
