"""Download the nine data sets of the paper and write each as a folder in BEIR layout.

The BEIR sets come from ``ir_datasets``; the KILT sets and the captioned images from the Hugging Face library
``datasets``. As in the paper, the KILT corpus is limited to Wikipedia pages that contain an answer, one document per
paragraph.
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
# Name on the hub, configuration, split and caption column, selected to match the sizes in the paper.
IMAGES = {
    "coco": ("HuggingFaceM4/COCO", "2014_captions", "train", "sentences_raw"),
    "flickr": ("nlphuji/flickr30k", None, "test", "caption"),
}
NAMES = (*BEIR, *KILT, *IMAGES)

Row = tuple[str, dict[str, Any]]
"""Id and fields of a document or query."""
Qrel = tuple[str, str, float]
"""Query id, document id, grade."""


def fetch(name: str, folder: Path) -> None:
    """Download a data set into a folder; exit with a one-line message if that fails."""
    if name not in NAMES:
        sys.exit(f"Unknown data set {name!r}: {folder} does not exist, and the name is not one of {', '.join(NAMES)}.")
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if name in BEIR:
            _write(partial, *_beir(name))
        elif name in KILT:
            _write(partial, *_kilt(name))
        else:
            _write(partial, *_images(name, partial))
    except Exception as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        layout = f"{folder}/corpus.jsonl, queries.jsonl and qrels/*.tsv"
        sys.exit(f"{name} could not be downloaded ({reason}). Provide it in BEIR layout: {layout}.")
    partial.rename(folder)


def _beir(name: str) -> tuple[Iterable[Row], Iterable[Row], Iterable[Qrel]]:
    import ir_datasets

    splits = [ir_datasets.load(split) for split in BEIR[name]]
    documents = ((doc.doc_id, {"title": getattr(doc, "title", ""), "text": doc.text}) for doc in splits[0].docs)
    queries = {query.query_id: query.text for split in splits for query in split.queries}
    qrels = [(qrel.query_id, qrel.doc_id, qrel.relevance) for split in splits for qrel in split.qrels]
    return documents, [(key, {"text": text}) for key, text in queries.items()], qrels


def _kilt(name: str) -> tuple[Iterable[Row], Iterable[Row], Iterable[Qrel]]:
    """Read one KILT set; its corpus consists of the pages that answer a question of any of the three sets."""
    import datasets

    answers = {task: list(_kilt_answers(datasets.load_dataset("kilt_tasks", KILT[task]))) for task in KILT}
    if name == "triviaqa":
        # KILT has only the ids of the TriviaQA questions; the texts are in the original data set.
        original = datasets.load_dataset("trivia_qa", "unfiltered.nocontext")
        text_of = {row["question_id"]: row["question"] for split in original.values() for row in split}
        answers[name] = [
            (query, text_of[query], page, number) for query, _, page, number in answers[name] if query in text_of
        ]
    pages = {page for task in answers.values() for _, _, page, _ in task}

    def paragraphs() -> Iterator[Row]:
        for page in datasets.load_dataset("kilt_wikipedia", split="full", streaming=True):
            if page["wikipedia_id"] in pages:
                for number, text in enumerate(page["text"]["paragraph"]):
                    yield f"{page['wikipedia_id']}-{number}", {"title": page["wikipedia_title"], "text": text}

    queries = {query: text for query, text, _, _ in answers[name]}
    qrels = sorted({(query, f"{page}-{number}", 1.0) for query, _, page, number in answers[name]})
    return paragraphs(), [(key, {"text": text}) for key, text in queries.items()], qrels


def _kilt_answers(task: Any) -> Iterator[tuple[str, str, str, int]]:
    """Yield (question id, question, page id, paragraph number) for every answer paragraph."""
    for split in task.values():
        for row in split:
            for output in row["output"]:
                for source in output["provenance"]:
                    for number in range(source["start_paragraph_id"], source["end_paragraph_id"] + 1):
                        yield row["id"], row["input"], source["wikipedia_id"], number


def _images(name: str, folder: Path) -> tuple[Iterable[Row], Iterable[Row], Iterable[Qrel]]:
    """Read a set of captioned images; save the images, with the captions as queries."""
    import datasets

    dataset, configuration, split, column = IMAGES[name]
    (folder / "images").mkdir(parents=True)
    documents, queries, qrels = [], [], []
    for image, row in enumerate(datasets.load_dataset(dataset, configuration, split=split, streaming=True)):
        row["image"].convert("RGB").save(folder / "images" / f"{image}.jpg")
        documents.append((str(image), {"image": f"images/{image}.jpg"}))
        captions = [row[column]] if isinstance(row[column], str) else row[column]
        for number, caption in enumerate(captions):
            queries.append((f"{image}-{number}", {"text": caption}))
            qrels.append((f"{image}-{number}", str(image), 1.0))
    return documents, queries, qrels


def _write(folder: Path, documents: Iterable[Row], queries: Iterable[Row], qrels: Iterable[Qrel]) -> None:
    """Write corpus.jsonl, queries.jsonl and qrels/all.tsv."""
    (folder / "qrels").mkdir(parents=True)
    for file, rows in (("corpus.jsonl", documents), ("queries.jsonl", queries)):
        with (folder / file).open("w", encoding="utf-8") as out:
            for key, fields in rows:
                out.write(json.dumps({"_id": key, **fields}, ensure_ascii=False) + "\n")
    with (folder / "qrels" / "all.tsv").open("w", encoding="utf-8") as out:
        out.write("query-id\tcorpus-id\tscore\n")
        out.writelines(f"{query}\t{document}\t{grade:g}\n" for query, document, grade in qrels)
