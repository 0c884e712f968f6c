"""Tuning keeps float32 exact whatever it chooses."""

from collections.abc import Iterator

import pytest
import torch

from modelstore.compute import MAX_RELATIVE_ERROR, tune_compute


@pytest.fixture(autouse=True)
def untouched_settings() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.set_num_threads(threads)
    torch.backends.mkldnn.matmul.fp32_precision = precision


def test_products_stay_float32_after_tuning() -> None:
    plan = tune_compute(1)
    left, right = torch.randn(300, 200), torch.randn(200, 400)
    exact = left.double() @ right.double()
    assert ((left @ right).double() - exact).norm() / exact.norm() < MAX_RELATIVE_ERROR
    assert plan.num_threads == 1
    assert plan.float32_backend in ("mkl", "onednn")


def test_zero_threads_keeps_what_torch_chose() -> None:
    before = torch.get_num_threads()
    assert tune_compute(0).num_threads == before
