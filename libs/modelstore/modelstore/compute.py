"""Makes torch fast on the CPU at hand, without making it less exact.

torch sends float32 matrix products to MKL, which leaves half of an AMD core unused; oneDNN uses all of
it. torch takes oneDNN only when it is told that a lower precision would do as well. Whether oneDNN
then really computes in a lower precision depends on the CPU, so this is measured: oneDNN is taken
where its results are as exact as float32 and it is clearly faster, or where a run that goes on took
it before.
"""

import ctypes
import functools
import gc
import time
from dataclasses import dataclass
from typing import Any

import torch

MKL, ONEDNN = "mkl", "onednn"

_BACKEND: Any = torch.backends.mkldnn
"""torch's types know neither its settings nor its functions."""

MAX_RELATIVE_ERROR = 2e-6
"""Above it the product was not computed in float32; bfloat16 gives about 3e-3."""

MIN_SPEEDUP = 1.3
"""Below it the choice would depend on the noise of the measurement."""

ROUNDS = 15
"""Each multiplies once with either; about 10 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePlan:
    """How this process multiplies matrices."""

    num_threads: int
    float32_backend: str
    """MKL or ONEDNN."""
    speedup: float
    """Time of mkl over time of onednn, as measured."""


def tune_compute(num_threads: int, float32_backend: str = "") -> ComputePlan:
    """Sets the threads and the float32 matrix product of this process; 0 threads means one per core.

    `float32_backend` is what has multiplied so far, or empty; see `choose_float32_backend`.

    Setting OMP_WAIT_POLICY=passive before the process starts helps as well wherever other processes
    want the same cores: waiting threads then sleep instead of spinning.
    """
    if num_threads:
        torch.set_num_threads(num_threads)
    speedup = _measure_onednn()
    chosen = choose_float32_backend(float32_backend, speedup)
    _allow_onednn(chosen == ONEDNN)
    return ComputePlan(num_threads=torch.get_num_threads(), float32_backend=chosen, speedup=speedup)


def choose_float32_backend(so_far: str, speedup: float) -> str:
    """Returns MKL or ONEDNN; the speed-up is that of oneDNN, 0 where it is absent or not exact.

    The two round differently, so what has computed with one (`so_far`) goes on with it, however fast it
    is, as long as it is exact. Otherwise the faster one is taken.
    """
    if speedup == 0:
        return MKL
    if so_far in (MKL, ONEDNN):
        return so_far
    return ONEDNN if speedup >= MIN_SPEEDUP else MKL


def float32_backend_in_use() -> str:
    """Returns what multiplies float32 in this process: MKL or ONEDNN."""
    return ONEDNN if _BACKEND.matmul.fp32_precision == "bf16" else MKL


def threads_of_each(processes: int) -> int:
    """Returns the threads of each of several processes that together take as many as this one: at least 1."""
    return max(1, torch.get_num_threads() // processes)


def release_memory() -> None:
    """Gives memory that is no longer used back to the system, after a model was let go.

    glibc keeps freed blocks for the thread that had them; the next model, on a new thread, would come
    on top.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@functools.cache
def _measure_onednn() -> float:
    """Returns the speed-up of oneDNN over MKL; 0 where oneDNN is absent or not exact.

    Measured once per process, so that no noise makes it choose again.
    """
    if not _BACKEND.is_available():
        return 0.0
    threads = torch.get_num_threads()
    # One thread: several spin while they wait for each other, and that would be measured too.
    torch.set_num_threads(1)
    try:
        return _compare()
    finally:
        torch.set_num_threads(threads)


def _compare() -> float:
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(512, 576, generator=generator)
    right = torch.randn(576, 1536, generator=generator)
    exact = left.double() @ right.double()
    for onednn in (False, True):
        _allow_onednn(onednn)
        error = ((left @ right).double() - exact).norm() / exact.norm()
        if float(error) > MAX_RELATIVE_ERROR:
            return 0.0
    # In turn, so that a moment in which the machine is slow strikes both.
    times = [(_seconds(left, right, False), _seconds(left, right, True)) for _ in range(ROUNDS)]
    return min(mkl for mkl, _ in times) / min(onednn for _, onednn in times)


def _allow_onednn(allow: bool) -> None:
    # The name says what precision would do; what the CPU makes of it is what is measured here.
    _BACKEND.matmul.fp32_precision = "bf16" if allow else "ieee"


def _seconds(left: torch.Tensor, right: torch.Tensor, onednn: bool) -> float:
    _allow_onednn(onednn)
    # Time of this thread alone, so that no busy neighbour decides.
    start = time.thread_time()
    torch.mm(left, right)
    return time.thread_time() - start
