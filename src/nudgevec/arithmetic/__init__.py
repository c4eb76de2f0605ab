"""Numbers in arrays: rows and pairs of rows, tables, sorted lists, and the threads and memory to work on them with."""
