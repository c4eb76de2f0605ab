"""GPU benchmarks: `python benchmarks/gpu.py [--sections same,case,half,shapes] [TARGET]`, on a machine with CUDA.

Times are seconds from ordinary host memory to the finished patch, after a small run that starts CUDA and its libraries.
The section `half` needs the peer's package, nudge-ft.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch
from peer import theirs

import nudgevec

METRICS = "capped_recall@1", "ndcg@10", "recall@100", "ndcg@100"
METHODS = {"N": nudgevec.NudgeN, "M": nudgevec.NudgeM}
# Queries and documents of the paper's data sets (its table of sizes), labels per query, dimensions.
TEXTS = {
    "NFCorpus": (2_429, 3_633, 40, 384),
    "SciFact": (1_109, 5_183, 1, 384),
    "ArguAna": (1_401, 8_674, 1, 384),
    "FEVER": (123_142, 5_416_568, 1, 384),
    "NQ": (79_782, 7_631_395, 1, 384),
    "TriviaQA": (58_245, 7_631_395, 1, 384),
    "HotpotQA": (74_259, 7_631_395, 2, 384),
}
IMAGES = {"COCO": (414_113, 82_783, 1, 512), "Flickr": (155_070, 31_014, 1, 512)}


def random_documents(rows, dim, seed=0):
    """Unit vectors in ordinary host memory, made on the device."""
    torch.manual_seed(seed)
    documents = np.empty((rows, dim), np.float32)
    for begin in range(0, rows, 1 << 18):
        part = torch.randn(min(1 << 18, rows - begin), dim, device="cuda")
        documents[begin : begin + len(part)] = torch.nn.functional.normalize(part).cpu().numpy()
    return documents


def problem(documents, train, validation, labelled, labels=1, seed=0):
    """Labelled queries for some of the documents: each of those has a hidden topic its queries scatter around."""
    random = np.random.default_rng(seed)
    dim = documents.shape[1]
    picked = np.sort(random.choice(len(documents), min(labelled, len(documents)), replace=False))
    answers = random.integers(0, len(picked), (train + validation, labels))
    torch.manual_seed(seed + 1)
    scatter = 2.35 / dim**0.5
    normal = torch.nn.functional.normalize
    home = torch.from_numpy(documents[picked]).cuda()
    topics = normal(home + scatter * torch.randn_like(home))
    queries = topics[torch.from_numpy(answers).cuda()].mean(dim=1)
    queries = normal(queries + scatter * torch.randn_like(queries)).cpu().numpy()
    rows = [sorted(set(picked[line].tolist())) for line in answers]
    return (queries[:train], rows[:train]), (queries[train:], rows[train:])


def timed(call, repeat=3):
    """Seconds of the first and the best call, and the most GPU memory (GB) that was reserved."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times[0], min(times), torch.cuda.max_memory_reserved() / 1e9


def ours(documents, train, validation, method, metric):
    return lambda: METHODS[method](metric, engine="torch").fit(documents, train, validation)


def case(everything):
    yield from ("## 7.6 million documents", "")
    yield "7,631,395 x 384, 55,000 training and 8,000 validation queries, labels on 60,000 documents."
    yield from ("", "| what | first call, s | best of 3, s | GPU memory, GB |", "|---|---|---|---|")
    parts = problem(everything, 55_000, 8_000, 60_000)
    for method in METHODS:
        for metric in METRICS:
            first, best, memory = timed(ours(everything, *parts, method, metric))
            yield f"| nudgevec {method}, {metric} | {first:.2f} | {best:.2f} | {memory:.1f} |"


def half(everything, with_peer=True):
    yield from ("## 500,000 documents", "")
    yield "The same queries and labels; the peer on its plain path."
    yield from ("", "| what | first call, s | best of 3, s | GPU memory, GB | nudge-ft / first |", "|---" * 5 + "|")
    documents = np.array(everything[:500_000])
    parts = problem(documents, 55_000, 8_000, 60_000)
    for method in METHODS:
        peer = float("nan")
        if with_peer:
            peer, _, memory = timed(theirs(documents, *parts, method), repeat=1)
            yield f"| nudge-ft NUDGE{method} | {peer:.1f} | | {memory:.1f} | 1 |"
        for metric in METRICS:
            first, best, memory = timed(ours(documents, *parts, method, metric))
            yield f"| nudgevec {method}, {metric} | {first:.3f} | {best:.3f} | {memory:.1f} | {peer / first:.0f} x |"


def shapes(everything):
    yield from ("## The paper's data sets, as shapes", "")
    yield "Sizes from the paper, synthetic vectors, NDCG@10, split 0.7/0.1/0.2 with at most 10,000 validation queries."
    yield "Text answers are drawn from as many documents as there are labels, image answers from all documents."
    yield from ("", "| data set | N, s | M, s | labelled documents | GPU memory, GB |", "|---|---|---|---|---|")
    for title, sets in (("all seven", TEXTS), ("both image sets", IMAGES)):
        totals = np.zeros(len(METHODS))
        for name, (queries, rows, labels, dim) in sets.items():
            documents = everything[:rows] if dim == everything.shape[1] else random_documents(rows, dim)
            train, validation = int(0.7 * queries), min(10_000, int(0.1 * queries))
            parts = problem(documents, train, validation, queries * labels, labels)
            runs = [timed(ours(documents, *parts, method, "ndcg@10"), repeat=1) for method in METHODS]
            seconds = np.array([first for first, _, _ in runs])
            totals += seconds
            labelled = len({row for line in parts[0][1] for row in line})
            times = " | ".join(f"{each:.2f}" for each in seconds)
            yield f"| {name} | {times} | {labelled:,} | {max(memory for _, _, memory in runs):.1f} |"
        yield f"| **{title}** | {' | '.join(f'**{each:.2f}**' for each in totals)} | | |"


def same(everything):
    yield from ("## The same answer", "")
    documents = np.array(everything[:200_000])
    parts = problem(documents, 10_000, 2_000, 8_000)
    for method, kind in METHODS.items():
        for metric in METRICS:
            one, other = (kind(metric, engine=engine).fit(documents, *parts) for engine in ("cpu", "torch"))
            equal = (
                one.gamma_ == other.gamma_
                and np.array_equal(one.curve_.edges, other.curve_.edges)
                and np.array_equal(one.curve_.values, other.curve_.values)
                and np.array_equal(one.patch_.after, other.patch_.after)
            )
            verdict = "equal" if equal else "NOT EQUAL"
            yield f"- {method}, {metric}: gamma {one.gamma_!r}, curve and patch of both engines are {verdict}."


SECTIONS = {section.__name__: section for section in (same, case, half, shapes)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="docs/results/benchmarks-gpu.md", type=Path)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--rows", default=7_631_395, type=int)
    asked = parser.parse_args()
    gpu = torch.cuda.get_device_name()
    lines = [
        "# Benchmarks on a GPU",
        "",
        f"Made by `python benchmarks/gpu.py` ({asked.sections}). {gpu}, {len(os.sched_getaffinity(0))} CPU cores; "
        f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}, "
        f"nudgevec {nudgevec.__version__}.",
        "Times are from ordinary host memory to the finished patch, after a small run that starts CUDA.",
        "",
    ]
    everything = random_documents(asked.rows, 384)
    ours(everything[:5000], *problem(everything[:5000], 500, 100, 400), "N", "ndcg@10")()
    for name in asked.sections.split(","):
        for line in SECTIONS[name](everything):
            print(line, flush=True)
            lines.append(line)
        lines.append("")
        asked.target.parent.mkdir(parents=True, exist_ok=True)
        asked.target.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
