"""The paper's nine data sets from where they are published, written once as a folder in BEIR layout.

Text sets of BEIR come through ``ir_datasets``; those of KILT and the captioned images through the Hugging Face library
``datasets``. Of KILT's Wikipedia only pages with an answer are kept, paragraph by paragraph, as in the paper.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

BEIR = {
    "scifact": ("beir/scifact/train", "beir/scifact/test"),
    "nfcorpus": ("beir/nfcorpus/train", "beir/nfcorpus/dev", "beir/nfcorpus/test"),
    "arguana": ("beir/arguana",),
    "fever": ("beir/fever/train", "beir/fever/dev", "beir/fever/test"),
}
KILT = {"nq": "nq", "hotpotqa": "hotpotqa", "triviaqa": "triviaqa_support_only"}
# Name on the hub, configuration, split, and the column of captions: the sizes are those of the paper's table.
IMAGES = {
    "coco": ("HuggingFaceM4/COCO", "2014_captions", "train", "sentences_raw"),
    "flickr": ("nlphuji/flickr30k", None, "test", "caption"),
}
NAMES = (*BEIR, *KILT, *IMAGES)

Row = tuple[str, dict[str, Any]]
Judgement = tuple[str, str, float]


def fetch(name: str, home: Path) -> None:
    """Write the data set into this folder, or say in one line what to do instead."""
    if name not in NAMES:
        sys.exit(f"There is no data set {name!r} at {home}, and it is none of {', '.join(NAMES)}.")
    part = home.with_name(home.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        if name in BEIR:
            _write(part, *_beir(name))
        elif name in KILT:
            _write(part, *_kilt(name))
        else:
            _write(part, *_images(name, part))
    except Exception as error:
        shutil.rmtree(part, ignore_errors=True)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        layout = f"{home}/corpus.jsonl, queries.jsonl and qrels/*.tsv"
        sys.exit(f"{name} could not be fetched ({reason}): put it in BEIR layout at {layout}.")
    part.rename(home)


def _beir(name: str) -> tuple[Iterable[Row], Iterable[Row], Iterable[Judgement]]:
    import ir_datasets

    sides = [ir_datasets.load(side) for side in BEIR[name]]
    documents = ((each.doc_id, {"title": getattr(each, "title", ""), "text": each.text}) for each in sides[0].docs)
    queries = {each.query_id: each.text for side in sides for each in side.queries}
    judged = [(each.query_id, each.doc_id, each.relevance) for side in sides for each in side.qrels]
    return documents, [(key, {"text": text}) for key, text in queries.items()], judged


def _kilt(name: str) -> tuple[Iterable[Row], Iterable[Row], Iterable[Judgement]]:
    """Paragraphs of the pages that answer a question of any of the three sets, as all three share one corpus."""
    import datasets

    answers = {task: list(_answers(datasets.load_dataset("kilt_tasks", KILT[task]))) for task in KILT}
    if name == "triviaqa":
        # KILT has only the ids of these questions; their words are in the original set.
        original = datasets.load_dataset("trivia_qa", "unfiltered.nocontext")
        words = {row["question_id"]: row["question"] for side in original.values() for row in side}
        answers[name] = [(query, words[query], *place) for query, _, *place in answers[name] if query in words]
    pages = {page for task in answers.values() for _, _, page, _ in task}

    def paragraphs() -> Iterator[Row]:
        for page in datasets.load_dataset("kilt_wikipedia", split="full", streaming=True):
            if page["wikipedia_id"] in pages:
                for number, text in enumerate(page["text"]["paragraph"]):
                    yield f"{page['wikipedia_id']}-{number}", {"title": page["wikipedia_title"], "text": text}

    queries = {query: text for query, text, _, _ in answers[name]}
    judged = sorted({(query, f"{page}-{number}", 1.0) for query, _, page, number in answers[name]})
    return paragraphs(), [(key, {"text": text}) for key, text in queries.items()], judged


def _answers(task: Any) -> Iterator[tuple[str, str, str, int]]:
    """(question id, question, page, paragraph) for every paragraph a question was answered from."""
    for side in task.values():
        for row in side:
            for output in row["output"]:
                for source in output["provenance"]:
                    for number in range(source["start_paragraph_id"], source["end_paragraph_id"] + 1):
                        yield row["id"], row["input"], source["wikipedia_id"], number


def _images(name: str, home: Path) -> tuple[Iterable[Row], Iterable[Row], Iterable[Judgement]]:
    import datasets

    where, configuration, split, column = IMAGES[name]
    (home / "images").mkdir(parents=True)
    documents, queries, judged = [], [], []
    for number, row in enumerate(datasets.load_dataset(where, configuration, split=split, streaming=True)):
        row["image"].convert("RGB").save(home / "images" / f"{number}.jpg")
        documents.append((str(number), {"image": f"images/{number}.jpg"}))
        captions = [row[column]] if isinstance(row[column], str) else row[column]
        for place, caption in enumerate(captions):
            queries.append((f"{number}-{place}", {"text": caption}))
            judged.append((f"{number}-{place}", str(number), 1.0))
    return documents, queries, judged


def _write(home: Path, documents: Iterable[Row], queries: Iterable[Row], judged: Iterable[Judgement]) -> None:
    (home / "qrels").mkdir(parents=True)
    for file, rows in (("corpus.jsonl", documents), ("queries.jsonl", queries)):
        with (home / file).open("w", encoding="utf-8") as out:
            for key, row in rows:
                out.write(json.dumps({"_id": key, **row}, ensure_ascii=False) + "\n")
    with (home / "qrels" / "all.tsv").open("w", encoding="utf-8") as out:
        out.write("query-id\tcorpus-id\tscore\n")
        out.writelines(f"{query}\t{document}\t{grade:g}\n" for query, document, grade in judged)
