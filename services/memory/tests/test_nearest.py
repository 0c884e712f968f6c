"""The search for the nearest vectors: against a plain sort, with equal vectors, growing and shrinking."""

import numpy as np
import pytest

from memory.nearest import VectorIndex, Vectors


def unit_vectors(count: int, dimension: int, seed: int) -> Vectors:
    vectors = np.random.default_rng(seed).normal(size=(count, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def index_of(vectors: Vectors) -> VectorIndex:
    return VectorIndex(np.arange(1, len(vectors) + 1), vectors.copy())


@pytest.mark.parametrize("count", [1, 7, 500, 2000])
def test_the_nearest_are_those_of_a_plain_sort(count: int) -> None:
    vectors = unit_vectors(500, 64, seed=count)
    query = unit_vectors(1, 64, seed=9)[0]
    found = index_of(vectors).nearest(query, count)
    exact = vectors.astype(np.float64) @ query.astype(np.float64)
    assert found.positions.tolist() == (np.argsort(-exact)[:count] + 1).tolist()
    assert found.similarities == pytest.approx(np.sort(exact)[::-1][:count], abs=1e-12)


@pytest.mark.parametrize("total", [*range(1, 40), 5000])
def test_equal_vectors_are_equally_near_wherever_they_stand_and_the_oldest_come_first(
    total: int,
) -> None:
    query, vector = unit_vectors(2, 256, seed=3)
    found = index_of(np.tile(vector, (total, 1))).nearest(query, 10)
    assert set(found.similarities.tolist()) == {
        float((vector.astype(np.float64) * query.astype(np.float64)).sum())
    }
    assert found.positions.tolist() == list(range(1, min(total, 10) + 1))


def test_a_vector_is_never_nearer_than_1_to_itself() -> None:
    for vector in unit_vectors(200, 256, seed=4):
        (similarity,) = index_of(vector[np.newaxis]).nearest(vector, 1).similarities
        assert 1 - 1e-6 < similarity <= 1


def test_what_is_added_is_found_and_what_is_removed_is_not() -> None:
    vectors = unit_vectors(300, 8, seed=5)
    index = index_of(vectors[:0])
    assert index.nearest(vectors[0], 3).positions.tolist() == []
    for position, vector in enumerate(vectors):
        index.add(position, vector)
    for position in (0, 299, 150):
        index.remove(position)
    assert len(index) == 297
    kept = [position for position in range(300) if position not in (0, 299, 150)]
    assert index.nearest(vectors[7], 300).positions[0] == 7
    assert sorted(index.nearest(vectors[7], 300).positions.tolist()) == kept
    index.add(300, vectors[150])
    assert index.nearest(vectors[150], 1).positions.tolist() == [300]
