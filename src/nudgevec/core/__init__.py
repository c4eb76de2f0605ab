"""The algorithm in the order it runs: pull, scan, paths, sweep (candidates, crossings), curve.

Arrays in, arrays out, no input or output.
"""
