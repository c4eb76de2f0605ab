"""The published package (nudge-ft), as it is called on both of its paths."""

from __future__ import annotations

import numpy as np


def theirs(documents, train, validation, method="N", spare=False):
    """A call of it. On its memory-saving path (`spare`) only the documents in play are its embeddings, and it looks at
    the others in batches. These are put apart beforehand, which is not the work to be measured."""
    import nudge

    kind = {"N": nudge.NUDGEN, "M": nudge.NUDGEM}[method]
    sets = [{"q_embs": part[0], "q_ans_indx": part[1]} for part in (train, validation)]
    if not spare:
        return lambda: kind().finetune_embeddings(documents, *sets)
    play = np.unique([row for part in (train, validation) for line in part[1] for row in line])
    number = {row: place for place, row in enumerate(play.tolist())}
    for one in sets:
        one["q_ans_indx"] = [[number[row] for row in line] for line in one["q_ans_indx"]]
    others = np.delete(documents, play, axis=0)
    return lambda: kind().finetune_embeddings(documents[play], *sets, nontrain_embeddings=others, val_batch_size=65536)
