"""Taking tiles of documents to a GPU: through pinned memory, ahead of their use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from nudgevec.arithmetic import parallel
from nudgevec.engines.pytorch import import_torch
from nudgevec.scan.tiles import Tile

# Tiles under way at a time, and threads that copy one into pinned memory.
_SLOTS = 3
_COPIERS = 8


def arriving(tiles: Iterator[Tile], device: Any) -> Iterator[tuple[Tile, Any]]:
    """Every tile with its vectors on the device, which are good until the next one is asked for."""
    torch = import_torch()
    if device.type != "cuda":
        for tile in tiles:
            yield tile, torch.from_numpy(np.array(tile.block)).to(device)
        return
    slots = [_Slot(torch, device) for _ in range(_SLOTS)]
    copying = torch.cuda.Stream(device)
    with (
        ThreadPoolExecutor(1, "nudgevec-send") as sender,
        ThreadPoolExecutor(min(_COPIERS, parallel.cores()), "nudgevec-copy") as copiers,
    ):

        def send(slot: _Slot) -> Tile | None:
            tile = next(tiles, None)
            if tile is not None:
                slot.send(tile.block, copying, copiers)
            return tile

        coming = deque((slot, sender.submit(send, slot)) for slot in slots[1:])
        free = slots[0]
        try:
            while True:
                slot, arrival = coming.popleft()
                sent = arrival.result()
                if sent is None:
                    return
                coming.append((free, sender.submit(send, free)))
                torch.cuda.current_stream(device).wait_event(slot.ready)
                yield sent, slot.vectors
                slot.done.record()
                free = slot
        finally:
            for _, arrival in coming:
                if not arrival.cancel():
                    wait([arrival])
            copying.synchronize()


class _Slot:
    """Pinned memory and device memory for one tile."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch, self.device = torch, device
        self.ready, self.done = torch.cuda.Event(), torch.cuda.Event()
        self.pinned: Any = None
        self.room: Any = None
        self.vectors: Any = None

    def send(self, block: Any, stream: Any, copiers: ThreadPoolExecutor) -> None:
        torch = self.torch
        self.done.synchronize()
        kind = torch.from_numpy(np.empty(0, block.dtype)).dtype
        if self.pinned is None or self.pinned.dtype != kind or len(self.pinned) < len(block):
            self.pinned = torch.empty(block.shape, dtype=kind, pin_memory=True)
            self.room = torch.empty(block.shape, dtype=kind, device=self.device)
            # The memory may have been somebody else's a moment ago, and may be again.
            stream.wait_stream(torch.cuda.current_stream(self.device))
            self.room.record_stream(stream)
        into = self.pinned.numpy()
        step = max(1, -(-len(block) // _COPIERS))

        def copy(begin: int) -> None:
            into[begin : min(begin + step, len(block))] = block[begin : begin + step]

        for _ in copiers.map(copy, range(0, len(block), step)):
            pass
        self.vectors = self.room[: len(block)]
        with torch.cuda.stream(stream):
            self.vectors.copy_(self.pinned[: len(block)], non_blocking=True)
            self.ready.record(stream)
