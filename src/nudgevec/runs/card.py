"""The report of a run for people: the summary on the command line, and the run card in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from nudgevec.patch import method_name
from nudgevec.tables import COMPARISON, comparison_row


def summary(facts: dict[str, Any]) -> list[str]:
    """Return sentences about the data, the split, the step and the result of a run."""
    counts, metric = facts["counts"], facts["metric"]
    change = facts["test"]["change"][metric]
    n_train, n_validation = (
        counts[f"{split}_queries"] - counts[f"{split}_queries_without_labels"] for split in ("train", "validation")
    )
    n_test, n_trained = counts["test_queries"], counts["test_queries_with_documents_in_training"]
    return [
        f"{facts['data']['name']}: {counts['documents']:,} documents; {n_train:,} training, {n_validation:,} "
        f"validation and {n_test:,} test queries.",
        f"Split: {facts['split']}.",
        _step(facts),
        f"{metric} of the test queries: {change['wins']:,} better, {change['losses']:,} worse, {change['ties']:,} "
        f"unchanged (p = {change['p_value']:.4f}).",
        f"{n_trained:,} of {n_test:,} test queries ({n_trained / n_test:.0%}) have a relevant document that is "
        "labelled for a training query too.",
        *([] if is_changed(facts) else _advice(facts)),
    ]


def _step(facts: dict[str, Any]) -> str:
    """Return which step was taken, or why none was."""
    metric, validation, name = facts["metric"], facts["validation"], method_name(facts["method"])
    if is_changed(facts):
        is_given = facts["gamma_is_given"]
        choice = "was given" if is_given else f"is the best step for {metric} on the held-out queries"
        if facts["map"] and facts["map"]["sigma"]:
            return _mapped(facts, choice)
        return f"{name} moved {facts['counts']['moved']:,} documents; gamma {facts['gamma']:.4g} {choice}."
    if facts["gamma_is_given"]:
        return f"No document moved: with gamma {facts['gamma']:.4g}, no vector changes."
    if not validation["best_gamma"] and validation["evidence"] <= 0:
        return f"No document moved: nothing improves {metric} on the held-out queries."
    if facts["map"]:
        return f"No document moved: the gain in {metric} on the held-out queries could be chance."
    return (
        f"No document moved: gamma {validation['best_gamma']:.4g} is the best step for {metric} on the validation "
        "queries, but its gain could be chance."
    )


def _mapped(facts: dict[str, Any], choice: str) -> str:
    """Return what a map moved, and what that costs."""
    side, sigma, moved = facts["map"]["side"], facts["map"]["sigma"], facts["counts"]["moved"]
    step = f"labelled documents then rotate toward their queries: gamma {facts['gamma']:.4g} {choice}"
    if not facts["gamma"]:
        step = f"no further step of labelled documents improves {facts['metric']}"
    if side == "documents":
        cost = f"{moved:,} vectors are to be written once; nothing changes at query time"
    else:
        cost = f"{moved:,} vectors are to be written, and every query goes through the map before its search"
    return f"Nudge mapped all {side} (sigma {sigma:g}); {step}. {cost}."


def is_changed(facts: dict[str, Any]) -> bool:
    """Whether a run changes documents or queries."""
    return bool(facts["counts"]["moved"] or (facts["map"] and facts["map"]["sigma"]))


def _advice(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what can be done where nothing moved."""
    counts, needed, wanted = facts["counts"], facts["validation"]["queries_needed"], facts["collect_next"]
    n_train, n_validation = (
        counts[f"{split}_queries"] - counts[f"{split}_queries_without_labels"] for split in ("train", "validation")
    )
    n_shared = counts["validation_queries_with_documents_in_training"]
    n_held_out = facts["validation"]["queries"]
    if facts["gamma_is_given"]:
        yield "The validation queries were not used: without --gamma, they show which step gains most."
    elif needed is None:
        yield (f"The {n_held_out:,} held-out queries show no gain to estimate from how many more would show one.")
    else:
        more = max(1, needed - n_held_out)
        labelled = ceil(more * (n_train + n_validation + counts["test_queries"]) / n_held_out)
        yield (
            f"To see a gain of this size in four of five cases takes about {more:,} more held-out queries, which are "
            f"{labelled:,} more labelled queries if they are split as these are. --guard 0 takes the step anyway."
        )
    yield (
        f"{n_shared:,} of {n_validation:,} validation queries have a relevant document that is labelled for a training "
        "query too; queries without one gain little."
    )
    if wanted and 2 * n_shared < n_validation:
        examples = ", ".join(str(key) for key in wanted[:3])
        yield f"Collect next: training queries for documents that are asked for and have none, such as {examples}."
    else:
        yield (
            "Collect next: more training queries for the same documents, in words like those of the held-out queries. "
            "Where each query asks for something else of its document, no step helps."
        )


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
    return f"""# {facts["data"]["name"]}, tuned with {method_name(facts["method"])}

{sentences}

{_markdown_table(facts)}
{_snippet(facts)}
| | |
|---|---|
| embedder | {facts["embedder"]} |
| similarity for searching | {facts["similarity"]} |
| tuned for | {facts["metric"]} |
| gamma | {facts["gamma"]!r} |
| fingerprint of the moved rows | `{facts["fingerprints"]["moved"]}` |
| created | {facts["created"]}, {versions} |

`patch.safetensors` holds the moved rows before and after, `run.json` all figures, `queries.jsonl` every test query,
`documents.jsonl` every moved document, and `query_curves.safetensors` the metric of every query at every gamma.
`nudgevec inspect` shows them.
"""


def _snippet(facts: dict[str, Any]) -> str:
    """Return how to map queries, where a run asks for it."""
    if not facts["map"] or facts["map"]["side"] != "queries" or not facts["map"]["sigma"]:
        return ""
    return """
Map every query vector before the search, with NumPy or the matrix product of any other library:

```python
matrix = numpy.load("query_map.npy")  # once
query = query + query @ matrix  # then scale it back to its length where the store does not normalise
```
"""


def _markdown_table(facts: dict[str, Any]) -> str:
    heading = " | ".join(column.heading for column in COMPARISON)
    alignment = "|".join("---:" if column.number else "---" for column in COMPARISON)
    rows = "\n".join(f"| {' | '.join(row)} |" for row in comparison_rows(facts))
    return f"| {heading} |\n|{alignment}|\n{rows}"
