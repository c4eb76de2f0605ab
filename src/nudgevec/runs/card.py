"""What a run says to people: the run card, and the table on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def table(lines: Iterable[tuple[str, float, float, float, float, float]]) -> Iterator[str]:
    """Metrics before and after, from (name, before, after, change, and the ends of its interval)."""
    yield f"{'':12}{'before':>8}{'after':>8}{'change':>9}   95% interval of the change"
    for name, *numbers in lines:
        before, after, change, low, high = (100 * number for number in numbers)
        yield f"{name:12}{before:8.1f}{after:8.1f}{change:+9.1f}   {low:+.1f} to {high:+.1f}"


def run_table(facts: dict[str, Any]) -> Iterator[str]:
    """The table of a run: its test queries before and after."""
    test = facts["test"]
    return table(
        (name, test["before"][name]["mean"], test["after"][name]["mean"], each["mean"], each["low"], each["high"])
        for name, each in test["change"].items()
    )


def sentences(facts: dict[str, Any]) -> Iterator[str]:
    """What was done, in words."""
    counts, metric = facts["counts"], facts["metric"]
    change = facts["test"]["change"][metric]
    pull, choose = (
        counts[f"{side}_queries"] - counts[f"{side}_queries_without_labels"] for side in ("train", "validation")
    )
    yield (
        f"{facts['data']['name']}: {counts['documents']:,} documents; {pull:,} queries pull, {choose:,} choose the "
        f"step, {counts['test_queries']:,} were kept aside for the numbers "
        f"(split {facts['split']})."
    )
    if counts["moved"] == 0:
        yield "Nothing moved: no step was better on the validation queries by more than chance could do."
    else:
        yield (
            f"NUDGE-{facts['method']} moved {counts['moved']:,} documents by gamma {facts['gamma']:.4g}, the best step "
            f"for {metric} on the validation queries."
        )
    yield (
        f"{metric} of queries it never saw: {change['wins']:,} better, {change['losses']:,} worse, "
        f"{change['ties']:,} the same (p = {change['p_value']:.4f})."
    )
    seen, asked = counts["test_queries_with_an_answer_in_training"], counts["test_queries"]
    yield f"{seen:,} of {asked:,} test queries ({seen / asked:.0%}) have an answer that some training query has too."


def card(facts: dict[str, Any]) -> str:
    """The README.md of a run folder."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    words = "\n".join(f"- {sentence}" for sentence in sentences(facts))
    numbers = "\n".join(run_table(facts))
    return f"""# {facts["data"]["name"]}, tuned with NUDGE-{facts["method"]}

{words}

```text
{numbers}
```

| | |
|---|---|
| vectors | {facts["embedder"]} |
| search them by | {facts["similarity"]} |
| metric tuned for | {facts["metric"]} |
| gamma | {facts["gamma"]!r} |
| fingerprint of the moved rows | `{facts["fingerprints"]["moved"]}` |
| made | {facts["created"]}, {versions} |

`patch.safetensors` holds the moved rows before and after, `run.json` every number, `queries.jsonl` each test query and
`documents.jsonl` each document that moved. `nudgevec inspect` shows them.
"""
