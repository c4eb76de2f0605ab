"""A run: a collection read, embedded, split, tuned and measured; and the folder it is kept in."""
