"""PyTorch, where it is installed, and what this CPU multiplies fast."""

from __future__ import annotations

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
    # Before 2.11.
    older = {"avx512_bf16": "_is_avx512_bf16_supported", "avx512_vnni": "_is_vnni_supported"}
    asked = getattr(cpu, older[feature], None)
    return asked is not None and bool(asked())
