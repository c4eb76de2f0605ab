"""Experiment 2, run time of every method on one device, as ratios in one run.

    NUDGEVEC_DATA=... python experiments/run_time.py [--device cuda] [--kept]

writes docs/results/run-time.md and run-time.png. The times of a device are kept in the cache when they are taken, and
the table shows all devices whose times are there, so that those of a GPU can be brought from another machine. With
``--kept`` it only shows them. PTFT is timed by gpu.py alone: it is too slow for a CPU.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from methods import tune
from runs import Options, keep, options, problem, result
from tables import COLOURS, GRID, INK, markdown, panels, save, write

METHODS = ("NUDGE-M", "NUDGE-N", "NUDGE-IM", "NUDGE-IN", "Adapter", "Adapter-L", "PTFT", "PTFT-L")
UNIT = "NUDGE-N"
REPEATS = 3
HEAD = [
    "# Run time",
    "",
    "Made by `python experiments/run_time.py` (the GPU part by `python experiments/gpu.py`). Seconds from vectors in",
    "memory (for PTFT: texts) to tuned vectors, first split, one fit with the settings that were chosen; in brackets",
    f"the ratio to {UNIT} on the same device and data set. *With tuning* adds the other settings of the grid, in the",
    f"proportion they took when they were tried. NUDGE-M and NUDGE-N: the best of {REPEATS} fits; the others: one.",
    "Embedding the data before is not counted. *Total* is over the data sets of the device, as in the paper. PTFT is",
    "not run on a CPU.",
]

Times = dict[str, float]
"""Seconds of one fit, and of all settings of the grid together ("tuning")."""


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    if not chosen.kept:
        measure(chosen)
    devices = {path.stem: json.loads(path.read_text()) for path in sorted((chosen.cache / "run_time").glob("*.json"))}
    if not devices:
        raise SystemExit(f"No times are kept in {chosen.cache / 'run_time'}: run without --kept.")
    lines = list(HEAD)
    figure, axes = panels(len(devices))
    for axis, (device, found) in zip(axes, devices.items(), strict=True):
        lines += ["", f"## {device}", "", f"{found['machine']}; vectors of {found['model']}.", ""]
        lines += _table(found["seconds"])
        _draw(axis, found["seconds"])
        axis.set_title(device, fontsize=11, loc="left")
    save(figure, chosen.target / "run-time.png")
    write(chosen.target / "run-time.md", [*lines, "", "![](run-time.png)"])


def measure(chosen: Options) -> None:
    """Take the times of this device and keep them."""
    model = chosen.models[0]
    seconds: dict[str, Any] = {}
    for name in chosen.data:
        seconds[name] = {}
        for method in METHODS:
            if method.startswith("PTFT") and not chosen.ptft:
                continue
            tuned = result(chosen, name, model, method, chosen.seeds[0])
            assert tuned is not None
            seconds[name][method] = _times(chosen, name, model, method, tuned)
            print(f"{chosen.device} {name} {method}: {seconds[name][method]['fit']:.3f} s", flush=True)
    machine = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    if chosen.device != "cpu":
        machine = f"{torch.cuda.get_device_name()}, {machine}"
    machine += f", {torch.get_num_threads()} threads; torch {torch.__version__}, numpy {np.__version__}"
    told = {"machine": machine, "model": model, "seconds": seconds}
    keep(chosen.cache / "run_time" / f"{'CPU' if chosen.device == 'cpu' else 'GPU'}.json", told)


def _times(chosen: Options, name: str, model: str, method: str, tuned: dict[str, Any]) -> Times:
    task, _ = problem(name, model, chosen.seeds[0], chosen.device)
    trials, single = tuned["facts"]["trials"], tuned["facts"]["chosen"]
    times = []
    for _ in range(REPEATS if method in ("NUDGE-M", "NUDGE-N") else 1):
        began = time.perf_counter()
        tune(method, task, single["settings"])
        times.append(time.perf_counter() - began)
    # The other settings were timed when they were tried; they are brought to the speed of this fit.
    scale = min(times) / single["seconds"]
    return {"fit": min(times), "tuning": scale * sum(trial["seconds"] for trial in trials)}


def _table(seconds: dict[str, dict[str, Times]]) -> list[str]:
    rows = []
    for method in METHODS:
        times = [seconds[name].get(method) for name in seconds]
        units = [seconds[name][UNIT] for name in seconds]
        pairs = zip([*times, _total(times)], [*units, _total(units)], strict=True)
        rows.append([method, *(_cell(*pair) for pair in pairs)])
    return markdown(["method", *seconds, "total"], rows)


def _total(times: Sequence[Times | None]) -> Times | None:
    found = [each for each in times if each is not None]
    return {key: sum(each[key] for each in found) for key in found[0]} if len(found) == len(times) else None


def _cell(times: Times | None, unit: Times | None) -> str:
    if times is None or unit is None:
        return "not run"
    fit, tuning = (f"{_short(times[kind])} (x {_short(times[kind] / unit['fit'])})" for kind in ("fit", "tuning"))
    return fit if times["tuning"] < 1.5 * times["fit"] else f"{fit}, with tuning {tuning}"


def _short(value: float) -> str:
    """Three digits, and never an exponent."""
    return f"{float(f'{value:.3g}'):,g}"


def _draw(axis: Any, seconds: dict[str, dict[str, Times]]) -> None:
    """One point for every data set: the ratios differ too much for a mean."""
    shown = [method for method in METHODS if any(method in times for times in seconds.values())][::-1]
    for (name, times), colour in zip(seconds.items(), COLOURS, strict=False):
        there = [method for method in shown if method in times]
        ratios = [times[method]["fit"] / times[UNIT]["fit"] for method in there]
        axis.plot(ratios, [shown.index(method) for method in there], "o", color=colour, markersize=6, label=name)
    axis.set_yticks(range(len(shown)), shown)
    axis.axvline(1, color=INK, linewidth=0.8)
    axis.set(xscale="log", xlim=(0.5, 3000), xlabel=f"time of one fit, {UNIT} = 1")
    axis.grid(color=GRID, linewidth=0.5)
    axis.legend(frameon=False, fontsize=8, loc="upper right")


if __name__ == "__main__":
    main()
