"""The algorithm, in the order it runs: pull, paths, scan, sweep, curve. Arrays in, arrays out, no input or output."""
