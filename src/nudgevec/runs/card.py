"""The report of a run for people: the summary on the command line, and the run card in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nudgevec.tables import COMPARISON, comparison_row


def summary(facts: dict[str, Any]) -> list[str]:
    """Return sentences about the data, the split, the step and the result of a run."""
    counts, metric = facts["counts"], facts["metric"]
    change = facts["test"]["change"][metric]
    n_train, n_validation = (
        counts[f"{split}_queries"] - counts[f"{split}_queries_without_labels"] for split in ("train", "validation")
    )
    n_test, n_trained = counts["test_queries"], counts["test_queries_with_an_answer_in_training"]
    step = f"No document moved: no step improves {metric} on the validation queries by more than chance could."
    if counts["moved"]:
        step = (
            f"NUDGE-{facts['method']} moved {counts['moved']:,} documents; gamma {facts['gamma']:.4g} is the best "
            f"step for {metric} on the validation queries."
        )
    return [
        f"{facts['data']['name']}: {counts['documents']:,} documents; {n_train:,} training, {n_validation:,} "
        f"validation and {n_test:,} test queries.",
        f"Split: {facts['split']}.",
        step,
        f"{metric} of the test queries: {change['wins']:,} better, {change['losses']:,} worse, {change['ties']:,} "
        f"unchanged (p = {change['p_value']:.4f}).",
        f"{n_trained:,} of {n_test:,} test queries ({n_trained / n_test:.0%}) have a relevant document that is "
        "labelled for a training query too.",
    ]


def comparison_rows(facts: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of the test metrics before and after."""
    test = facts["test"]
    for name, change in test["change"].items():
        before, after = test["before"][name]["mean"], test["after"][name]["mean"]
        yield comparison_row(name, before, after, change["mean"], change["low"], change["high"])


def run_card(facts: dict[str, Any]) -> str:
    """Return the ``README.md`` of a run folder."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    sentences = "\n".join(f"- {sentence}" for sentence in summary(facts))
    return f"""# {facts["data"]["name"]}, tuned with NUDGE-{facts["method"]}

{sentences}

{_markdown_table(facts)}

| | |
|---|---|
| embedder | {facts["embedder"]} |
| similarity for searching | {facts["similarity"]} |
| tuned for | {facts["metric"]} |
| gamma | {facts["gamma"]!r} |
| fingerprint of the moved rows | `{facts["fingerprints"]["moved"]}` |
| created | {facts["created"]}, {versions} |

`patch.safetensors` holds the moved rows before and after, `run.json` all figures, `queries.jsonl` every test query and
`documents.jsonl` every moved document. `nudgevec inspect` shows them.
"""


def _markdown_table(facts: dict[str, Any]) -> str:
    heading = " | ".join(column.heading for column in COMPARISON)
    alignment = "|".join("---:" if column.number else "---" for column in COMPARISON)
    rows = "\n".join(f"| {' | '.join(row)} |" for row in comparison_rows(facts))
    return f"| {heading} |\n|{alignment}|\n{rows}"
