"""Numbers in arrays: rows, pairs of rows, sorted lists, and the threads and the memory they are worked on with."""
