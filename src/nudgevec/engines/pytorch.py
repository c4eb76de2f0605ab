"""PyTorch, where it is installed, and what this CPU multiplies fast."""

from __future__ import annotations

from functools import cache
from typing import Any

from nudgevec.errors import MissingExtraError


def import_torch() -> Any:
    """PyTorch, or what to do where it is missing."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("the torch engine", "torch") from None
    return torch


def cpu_has(feature: str) -> bool:
    """Whether the CPU has such instructions, ``"avx512_bf16"`` or ``"avx512_vnni"`` (for 8 bits), and PyTorch knows."""
    cpu = import_torch().cpu
    if hasattr(cpu, "get_capabilities"):
        return bool(cpu.get_capabilities().get(feature, False))
    # Older versions.
    older = {"avx512_bf16": "_is_avx512_bf16_supported", "avx512_vnni": "_is_vnni_supported"}
    asked = getattr(cpu, older[feature], None)
    return asked is not None and bool(asked())


@cache
def multiplies_integers() -> bool:
    """Whether products of integers of 8 bits are fast, and right: PyTorch adds them up in 16 bits where the CPU has no
    instructions for them, or where it was told not to use these, and large ones overflow there."""
    torch = import_torch()
    if not cpu_has("avx512_vnni"):
        return False
    largest = torch.full((64, 512), 127, dtype=torch.int8)
    products = [torch._int_mm(largest, (sign * largest).T) for sign in (1, -1)]
    return all(bool((each == sign * 512 * 127**2).all()) for each, sign in zip(products, (1, -1), strict=True))
