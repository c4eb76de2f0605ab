"""PyTorch, where it is installed, and what this CPU multiplies fast."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from nudgevec.arithmetic.rows import Ints, Singles
from nudgevec.errors import MissingExtraError


def import_torch() -> Any:
    """PyTorch, or what to do where it is missing."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("the torch engine", "torch") from None
    return torch


def has_integers() -> bool:
    """Whether the CPU has instructions for integers of 8 bits (AVX512-VNNI), and PyTorch knows."""
    cpu = import_torch().cpu
    if hasattr(cpu, "get_capabilities"):
        return bool(cpu.get_capabilities().get("avx512_vnni", False))
    # Older versions.
    asked = getattr(cpu, "_is_vnni_supported", None)
    return asked is not None and bool(asked())


@cache
def multiplies_integers() -> bool:
    """Whether products of integers of 8 bits are fast, and right: PyTorch adds them up in 16 bits where the CPU has no
    instructions for them, or where it was told not to use these, and large ones overflow there.

    (Those of bfloat16 are not asked for on CPUs: where a virtual machine promises tiles and does not tell how to set
    them up, they end the process; see https://github.com/uxlfoundation/oneDNN/issues/5689.)
    """
    torch = import_torch()
    if not has_integers():
        return False
    largest = torch.full((64, 512), 127, dtype=torch.int8)
    products = [torch._int_mm(largest, (sign * largest).T) for sign in (1, -1)]
    return all(bool((each == sign * 512 * 127**2).all()) for each, sign in zip(products, (1, -1), strict=True))


@contextmanager
def full_precision(torch: Any) -> Iterator[None]:
    """Products as our bounds assume them: float32 stays float32, and sums are kept in it."""
    settings = torch.backends.cuda.matmul
    with _precision:  # the settings are those of the whole process
        saved = settings.allow_tf32, settings.allow_bf16_reduced_precision_reduction
        settings.allow_tf32 = settings.allow_bf16_reduced_precision_reduction = False
        try:
            yield
        finally:
            settings.allow_tf32, settings.allow_bf16_reduced_precision_reduction = saved


_precision = threading.Lock()


def pair_products(left: Singles, i: Ints, right: Singles, j: Ints) -> Singles:
    """``left[i] . right[j]`` pair by pair, in float32, for pairs sorted by ``i`` and then by ``j``.

    As entries of a sparse product, whose vectors need not be copied side by side first: three times as fast.
    """
    torch = _torch_with_sparse_rows()
    begins = np.searchsorted(i, np.arange(len(left) + 1))
    wanted = _sparse_rows(torch, begins, j, (len(left), len(right)))
    rows = torch.from_numpy(right)
    products: Singles = torch.sparse.sampled_addmm(wanted, torch.from_numpy(left), rows.T, beta=0).values().numpy()
    return products


def _sparse_rows(torch: Any, begins: Ints, columns: Ints, shape: tuple[int, int]) -> Any:
    entries = torch.zeros(len(columns))
    places = torch.from_numpy(begins), torch.from_numpy(columns)
    return torch.sparse_csr_tensor(*places, entries, size=shape, check_invariants=False)


@cache
def _torch_with_sparse_rows() -> Any:
    """PyTorch, after it has warned that these are new there, which it does once."""
    torch = import_torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _sparse_rows(torch, np.zeros(2, np.int64), np.zeros(0, np.int64), (1, 1))
    return torch
