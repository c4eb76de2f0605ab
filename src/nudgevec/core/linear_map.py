"""A linear map of all documents, or of all queries, learned from labels.

The map takes a vector x to (x + x A), scaled back to the length of x. A is the d x d matrix with the largest

    log likelihood of the training labels - |A|^2 / (2 sigma^2)

under the model of ``softmax``: the most probable matrix if its numbers are normal with standard deviation sigma. With
few labels it stays near zero, and the vectors where they are. Labels of one document change the vectors of all: this
is what NUDGE itself cannot do.

The optimum is found by L-BFGS. In coordinates in which the curvature of the objective is about 1 in every direction,
few iterations are enough: the curvature is close to a Kronecker product of two d x d matrices (``covariances``), so
these coordinates are products of their eigenvectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from nudgevec.arrays import Array, Floats, Singles, slices
from nudgevec.core.softmax import LabelModel, Side

# Iterations of L-BFGS for each sigma, and the relative change of the objective that ends them.
_ITERATIONS, _ENOUGH = 10, 1e-4
# Directions of each side that the map can use; the others vary least, and the prior decides on them.
_DIRECTIONS = 512
_ROWS = 4096


@dataclass(frozen=True, eq=False)
class LinearMap:
    """The map x -> x + x A, scaled back to the length of x. Call it with vectors.

    Attributes
    ----------
    matrix : array of float32, shape (d, d)
        A; all zeros change nothing.

    Examples
    --------
    >>> turn = LinearMap(np.array([[0.0, 1.0], [0.0, 0.0]], np.float32))
    >>> turn(np.array([[2.0, 0.0], [0.0, 3.0]])).round(3)
    array([[1.414, 1.414],
           [0.   , 3.   ]])
    """

    matrix: Singles

    def __call__(self, vectors: Array) -> Array:
        """Return the mapped vectors, in their type."""
        mapped = np.empty_like(vectors)
        for part in slices(len(vectors), _ROWS):
            start = vectors[part].astype(np.float64)
            moved = start + start @ self.matrix
            length, moved_length = (np.linalg.norm(rows, axis=1, keepdims=True) for rows in (start, moved))
            mapped[part] = moved * (length / np.where(moved_length > 0, moved_length, 1.0))
        return mapped


class _Coordinates(NamedTuple):
    """Orthonormal directions of both sides of the matrix, and the curvature of the log likelihood along their pairs."""

    left: Singles
    right: Singles
    curvature: Floats

    def matrix(self, values: Floats, scale: Floats) -> Singles:
        """Return the matrix with these coordinates, each in units of ``scale``."""
        pairs: Singles = (values.reshape(scale.shape) * scale).astype(np.float32)
        return np.asarray(self.left @ pairs @ self.right.T, np.float32)

    def values(self, matrix: Singles, scale: Floats) -> Floats:
        """Return the coordinates of a matrix; the inverse of ``matrix``."""
        return np.asarray((self.left.T @ matrix @ self.right) / scale, np.float64).ravel()


def learn_maps(
    model: LabelModel, side: Side, tau: float, sigmas: Sequence[float], start: LinearMap | None = None
) -> Iterator[LinearMap]:
    """Yield the most probable map for each sigma, ascending; each search begins where the last one ended.

    Parameters
    ----------
    model : LabelModel
        The training labels.
    side : {"documents", "queries"}
        What is mapped.
    tau : float
        The temperature.
    sigmas : sequence of float
        Standard deviations of the prior.
    start : LinearMap, optional
        Where to begin; the zero matrix by default.
    """
    coordinates = _coordinates(model, side, tau)
    dim = model.documents.shape[1]
    matrix = np.zeros((dim, dim), np.float32) if start is None else start.matrix
    for sigma in sigmas:
        matrix = _search(model, side, tau, sigma, coordinates, matrix)
        yield LinearMap(matrix)


def _coordinates(model: LabelModel, side: Side, tau: float) -> _Coordinates:
    documents, queries = (_eigenvectors(matrix) for matrix in model.covariances(tau))
    (left_values, left), (right_values, right) = (documents, queries) if side == "documents" else (queries, documents)
    curvature = len(model.queries) / tau**2 * np.outer(left_values, right_values)
    return _Coordinates(left, right, curvature)


def _eigenvectors(matrix: Floats) -> tuple[Floats, Singles]:
    """Return the largest eigenvalues of a positive matrix, and their eigenvectors."""
    values, vectors = np.linalg.eigh(matrix)
    return np.maximum(values[-_DIRECTIONS:], 0.0), vectors[:, -_DIRECTIONS:].astype(np.float32)


def _search(
    model: LabelModel, side: Side, tau: float, sigma: float, coordinates: _Coordinates, start: Singles
) -> Singles:
    """Return the matrix with the largest penalised likelihood, from a matrix to begin with."""
    vectors = model.documents if side == "documents" else model.queries
    scale, n_queries = 1 / np.sqrt(coordinates.curvature + sigma**-2), len(model.queries)

    def objective(values: Floats) -> tuple[float, Floats]:
        """Return minus the penalised likelihood per query, and its gradient."""
        matrix = coordinates.matrix(values, scale)
        moved = vectors + vectors @ matrix
        length = np.linalg.norm(moved, axis=1, keepdims=True)
        length[length == 0] = 1.0
        moved /= length
        likelihood, gradient = model.log_likelihood(moved, side, tau)
        # Only the part of a gradient across the vector changes its direction.
        gradient -= np.einsum("ij,ij->i", gradient, moved)[:, None] * moved
        gradient /= length
        by_matrix = vectors.T @ gradient - matrix / np.float32(sigma**2)
        by_values = (coordinates.left.T @ by_matrix @ coordinates.right) * scale
        penalty = float(np.vdot(matrix, matrix)) / (2 * sigma**2)
        return (penalty - likelihood) / n_queries, -by_values.ravel().astype(np.float64) / n_queries

    options = {"maxiter": _ITERATIONS, "ftol": _ENOUGH, "gtol": 0.0}
    found = minimize(objective, coordinates.values(start, scale), jac=True, method="L-BFGS-B", options=options)
    return coordinates.matrix(found.x, scale)
