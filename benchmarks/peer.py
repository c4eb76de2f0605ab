"""The published package, nudge-ft."""

from __future__ import annotations


def theirs(documents, train, validation, method="N"):
    """Return a call of it that fits the given data."""
    import nudge

    kind = {"N": nudge.NUDGEN, "M": nudge.NUDGEM}[method]
    sets = [{"q_embs": queries, "q_ans_indx": labels} for queries, labels in (train, validation)]
    return lambda: kind().finetune_embeddings(documents, *sets)
