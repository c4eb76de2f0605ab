"""The algorithm in the order it runs: pull, scan, paths, sweep, curve. Arrays in, arrays out, no input or output."""

from nudgevec.core import compiling as compiling
