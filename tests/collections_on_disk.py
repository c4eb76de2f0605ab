"""Small collections on disk, in every layout the readers know."""

from __future__ import annotations

import json

import numpy as np

TOPICS = {
    "coffee": ["espresso machine", "how to brew coffee", "latte foam", "arabica beans", "cold brew at home"],
    "bicycle": ["flat tyre", "bike chain oil", "cycling helmet", "gear shifting", "how to fix my bike brakes"],
    "garden": ["pruning roses", "tomato seedlings", "compost heap", "lawn in spring", "slugs on lettuce"],
    "money": ["savings account", "interest rate", "index fund", "how to budget", "credit card debt"],
    "ocean": ["coral reef", "deep sea fish", "tidal wave", "whale song", "plankton bloom"],
    "music": ["guitar chords", "piano scales", "drum kit", "sheet music", "how to tune a violin"],
}


def texts(seed=0, per_topic=8, queries_per_topic=30):
    """Return documents about topics, queries for a document of a topic, and labels: (corpus, queries, qrels)."""
    random = np.random.default_rng(seed)
    corpus, queries, qrels = {}, {}, {}
    for topic, phrases in TOPICS.items():
        for number in range(per_topic):
            words = " and ".join(random.permutation(phrases)[:3])
            corpus[f"{topic}-{number}"] = f"{topic} {number}: {words}"
        for number in range(queries_per_topic):
            key = f"q-{topic}-{number}"
            queries[key] = f"{random.choice(phrases)} {random.choice(phrases)} {number}"
            qrels[key] = {f"{topic}-{number % 2}": 1}
    return corpus, queries, qrels


def beir(folder, splits=None, seed=0):
    """Write a BEIR folder; ``splits`` maps file names to a share of the queries, one file for all by default."""
    corpus, queries, qrels = texts(seed)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "corpus.jsonl").open("w") as file:
        for key, text in corpus.items():
            title, _, rest = text.partition(": ")
            file.write(json.dumps({"_id": key, "title": title, "text": rest}) + "\n")
    with (folder / "queries.jsonl").open("w") as file:
        for key, text in queries.items():
            file.write(json.dumps({"_id": key, "text": text}) + "\n")
    if splits is None:
        _write_qrels(folder / "qrels.tsv", qrels)
        return folder
    (folder / "qrels").mkdir(exist_ok=True)
    keys = list(np.random.default_rng(1).permutation(list(qrels)))
    for name, share in splits.items():
        count = round(share * len(qrels))
        _write_qrels(folder / "qrels" / f"{name}.tsv", {key: qrels[key] for key in keys[:count]})
        keys = keys[count:]
    return folder


def _write_qrels(path, qrels):
    lines = [f"{query}\t{key}\t{grade}" for query, grades in qrels.items() for key, grade in grades.items()]
    path.write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")
