"""Tuning keeps float32 exact whatever it chooses."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from modelstore.compute import (
    MAX_RELATIVE_ERROR,
    choose_float32_backend,
    float32_backend_in_use,
    release_memory,
    tune_compute,
)


@pytest.fixture(autouse=True)
def untouched_settings() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.set_num_threads(threads)
    torch.backends.mkldnn.matmul.fp32_precision = precision


def two_matrices() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(300, 200, generator=generator), torch.randn(200, 400, generator=generator)


def test_products_stay_float32_after_tuning() -> None:
    plan = tune_compute(1)
    left, right = two_matrices()
    exact = left.double() @ right.double()
    assert ((left @ right).double() - exact).norm() / exact.norm() < MAX_RELATIVE_ERROR
    assert plan.num_threads == 1
    assert plan.float32_backend in ("mkl", "onednn")


def test_tuning_again_multiplies_as_before_also_on_another_thread() -> None:
    first = tune_compute(1)
    left, right = two_matrices()
    product = left @ right
    # As somebody else may leave it.
    torch.backends.mkldnn.matmul.fp32_precision = (
        "ieee" if first.float32_backend == "onednn" else "bf16"
    )
    with ThreadPoolExecutor(1) as worker:
        second, again = worker.submit(lambda: (tune_compute(1), left @ right)).result()
    assert second == first
    assert torch.equal(again, product)


@pytest.mark.parametrize(
    ("asked", "speedup", "taken"),
    [
        ("", 1.6, "onednn"),
        ("", 1.1, "mkl"),
        ("onednn", 1.1, "onednn"),
        ("mkl", 1.6, "mkl"),
        ("of a later version", 1.1, "mkl"),
        # A run goes on on another CPU, where oneDNN would compute in bfloat16.
        ("onednn", 0.0, "mkl"),
    ],
)
def test_what_has_multiplied_goes_on_where_it_is_exact(
    asked: str, speedup: float, taken: str
) -> None:
    assert choose_float32_backend(asked, speedup) == taken


@pytest.mark.parametrize("backend", ["mkl", "onednn"])
def test_the_backend_that_is_asked_for_is_in_use(backend: str) -> None:
    plan = tune_compute(1, backend)
    assert float32_backend_in_use() == plan.float32_backend
    assert plan.float32_backend == choose_float32_backend(backend, plan.speedup)


def test_zero_threads_keeps_what_torch_chose() -> None:
    before = torch.get_num_threads()
    assert tune_compute(0).num_threads == before


def test_memory_that_was_let_go_goes_back_to_the_system() -> None:
    def resident_pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    # Small blocks stay in glibc's heap when they are freed; the last one keeps its end in use.
    blocks = [bytearray(60_000) for _ in range(4_000)]
    keep = blocks[-1]
    filled = resident_pages()
    del blocks
    release_memory()
    assert resident_pages() < filled - 40_000
    assert keep
