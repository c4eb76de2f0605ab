"""Where the time of tuning again goes, after new labels: `python benchmarks/retune.py [TARGET]`.

A collection of texts is tuned with a log of clicks, a hundredth more clicks come in, and it is tuned again. Of the
second time the steps are measured, and what it would take to find out which documents have new labels.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from hashlib import blake2b
from pathlib import Path

import numpy as np

from nudgevec import LabelLog, cli, run, tune
from nudgevec.feedback.log import Event

DOCUMENTS, CLICKS = 50_000, 200_000
WORDS = 4000


def main(target: Path) -> None:
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        data, log = Path(folder) / "data", Path(folder) / "clicks.sqlite"
        os.environ["NUDGEVEC_CACHE"] = f"{folder}/cache"
        texts = write_collection(data, random)
        with LabelLog(log) as kept:
            kept.extend(clicks(random, texts, CLICKS))
        command = ["tune", str(data), "--labels", str(log), "--out"]
        quietly([*command, f"{folder}/one"])
        with LabelLog(log) as kept:
            kept.extend(clicks(random, texts, CLICKS // 100, begin=CLICKS))
            queries = len(kept.spellings())
        times = watched()
        began = time.perf_counter()
        quietly([*command, f"{folder}/two"])
        again = time.perf_counter() - began
    lines = [
        "# Tuning again",
        "",
        f"`python benchmarks/retune.py` on {os.cpu_count()} cores, Python {platform.python_version()}. "
        f"{DOCUMENTS:,} documents, {CLICKS:,} clicks on them and then {CLICKS // 100:,} more, for {queries:,} queries; "
        "`static` vectors.",
        "",
        "| step, the second time | share of the whole |",
        "|---|---|",
        *(f"| {name} | {100 * seconds / again:.1f}% |" for name, seconds in times.items()),
    ]
    print(*lines, sep="\n")
    target.write_text("\n".join(lines) + "\n")


def write_collection(folder: Path, random: np.random.Generator) -> list[str]:
    """Documents of random words; returns their texts."""
    from nudgevec.demo import load

    known = sorted({word for text in load().keywords for word in text.split()})[:WORDS]
    words = np.array(known)
    texts = [" ".join(words[random.zipf(1.3, 12) % len(words)]) for _ in range(DOCUMENTS)]
    folder.mkdir()
    lines = (json.dumps({"_id": f"d{row}", "title": "", "text": text}) for row, text in enumerate(texts))
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return texts


def clicks(random, texts, count, begin=0):
    """Clicks for queries made of some words of the document clicked."""
    popular = random.zipf(1.2, count) % len(texts)
    for number, row in enumerate(popular.tolist()):
        words = texts[row].split()
        query = " ".join(words[number % 4 : number % 4 + 2 + number % 5])
        yield Event(query, f"d{row}", "click", time=1.0 + begin + number, source=f"client {number % 500}")


def watched() -> dict[str, float]:
    """Seconds by step, filled while the command runs."""
    times: dict[str, float] = defaultdict(float)

    def watch(home, name, step):
        function = getattr(home, name)

        def measured(*args, **kwargs):
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                times[step] += time.perf_counter() - began

        setattr(home, name, measured)

    watch(LabelLog, "labels", "reading the log, adding events up")
    watch(LabelLog, "spellings", "reading the log, adding events up")
    watch(run, "embedded", "embedding")
    pull = tune.gather

    def gather(labels, queries):
        began = time.perf_counter()
        result = pull(labels, queries)
        times["adding up the pull, for all documents"] += time.perf_counter() - began
        began = time.perf_counter()
        for vector in queries.vectors:
            blake2b(vector.tobytes(), digest_size=16).digest()
        times["(fingerprints of the training queries: to know for which documents it changed)"] += (
            time.perf_counter() - began
        )
        return result

    tune.gather = gather
    watch(run, "evaluate", "measuring before and after on the test queries")
    watch(run, "write", "writing the run")
    return times


def quietly(command: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main(command) == 0


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/benchmarks-retune.md"))
