"""Experiment 2, run time of every method on one device, as ratios in one run.

    NUDGEVEC_DATA=... python experiments/run_time.py [--device cuda]

writes docs/results/run-time.md and run-time.png. The times of a device are kept in the cache when they are taken, and
the table shows all devices whose times are there, so that those of a GPU can be brought from another machine.
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
from tables import COLOURS, markdown, panels, save, write

METHODS = ("NUDGE-M", "NUDGE-N", "NUDGE-IM", "NUDGE-IN", "Adapter", "Adapter-L", "PTFT", "PTFT-L")
UNIT = "NUDGE-N"
REPEATS = 3
HEAD = [
    "# Run time",
    "",
    "Made by `python experiments/run_time.py` (the GPU part by `python experiments/gpu.py`). Seconds from vectors in",
    "memory (for PTFT: texts) to tuned vectors, first split, one fit with the settings that were chosen; in brackets",
    f"the ratio to {UNIT} on the same device and data set. *With tuning* adds the other settings of the grid. NUDGE-M",
    f"and NUDGE-N: the best of {REPEATS} fits; the others: one. Embedding the data is not counted.",
]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    measure(chosen)
    devices = {path.stem: json.loads(path.read_text()) for path in sorted((chosen.cache / "run_time").glob("*.json"))}
    lines = list(HEAD)
    figure, axes = panels(len(devices), width=4.2)
    for axis, (device, found) in zip(axes, devices.items(), strict=True):
        seconds = found["seconds"]
        rows, ratios = [], {}
        for method in METHODS:
            times = {name: seconds[name][method] for name in seconds if method in seconds[name]}
            if not times:
                rows.append([method, *["not run" for _ in seconds]])
                continue
            units = {name: seconds[name][UNIT]["fit"] for name in times}
            ratios[method] = float(np.exp(np.mean([np.log(times[name]["fit"] / units[name]) for name in times])))
            rows.append([method, *(_cell(times.get(name), units.get(name)) for name in seconds)])
        lines += ["", f"## {device}", "", f"{found['machine']}; vectors of {found['model']}.", ""]
        lines += markdown(["method", *seconds], rows)
        names = list(ratios)[::-1]
        axis.barh(
            names, [ratios[name] for name in names], color=[COLOURS[0] if "NUDGE" in n else COLOURS[6] for n in names]
        )
        axis.set(xscale="log", xlabel=f"time, {UNIT} = 1 (geometric mean of the data sets)")
        axis.set_title(device, fontsize=10, loc="left")
        axis.tick_params(labelsize=8)
    save(figure, chosen.target / "run-time.png")
    write(chosen.target / "run-time.md", [*lines, "", "![](run-time.png)"])


def measure(chosen: Options) -> None:
    """Take the times of this device and keep them."""
    model = chosen.models[0]
    seconds: dict[str, Any] = {}
    for name in chosen.data:
        seconds[name] = {}
        for method in METHODS:
            tuned = result(chosen, name, model, method, chosen.seeds[0])
            if tuned is not None:
                seconds[name][method] = _times(chosen, name, model, method, tuned)
                print(f"{chosen.device} {name} {method}: {seconds[name][method]['fit']:.3f} s", flush=True)
    machine = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    if chosen.device != "cpu":
        machine = f"{torch.cuda.get_device_name()}, {machine}"
    machine += f", {torch.get_num_threads()} threads; torch {torch.__version__}, numpy {np.__version__}"
    told = {"machine": machine, "model": model, "seconds": seconds}
    keep(chosen.cache / "run_time" / f"{'CPU' if chosen.device == 'cpu' else 'GPU'}.json", told)


def _times(chosen: Options, name: str, model: str, method: str, tuned: dict[str, Any]) -> dict[str, float]:
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


def _cell(times: dict[str, float] | None, unit: float | None) -> str:
    if times is None or unit is None:
        return "not run"
    cell = f"{times['fit']:.2g} (x {times['fit'] / unit:.3g})"
    return cell if times["tuning"] < 1.5 * times["fit"] else f"{cell}, with tuning {times['tuning']:.2g}"


if __name__ == "__main__":
    main()
