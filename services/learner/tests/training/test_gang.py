"""Ranks that train together: the same gradients and figures as one process, and one end for all."""

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from learner.ports import Restored, ScoredRollout, Stopped
from learner.training.checkpoint import latest_checkpoint
from learner.training.ranks import Alone
from learner.training.session import Session, SessionSettings
from learner.workers.gang import Gang, rank_environment
from modelstore.compute import float32_backend_in_use, tune_compute
from runspec.schema import RunSpec
from servicekit.errors import Unavailable

pytestmark = pytest.mark.slow

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gradient_equality.py"
MakeGroups = Callable[..., list[list[ScoredRollout]]]


def quiet(done: int, total: int) -> None:
    """Takes progress."""


def settings_of(model: Path, home: Path, **train: Any) -> SessionSettings:
    spec = RunSpec.model_validate(
        {
            "algorithm": "grpo",
            "model": {"path": str(model)},
            "data": {"train": "tasks"},
            "train": {"max_steps": 4, "learning_rate": 1e-3, "kl_coef": 0.1, **train},
            "grader": {"type": "answer", "reference": "x"},
        }
    )
    return SessionSettings(
        spec=spec, base=model, adapter=None, checkpoints=home / "checkpoints", threads=1
    )


@contextmanager
def opened(found: Any) -> Iterator[Any]:
    with closing(found):
        yield found


def test_a_gang_learns_as_one_process_and_goes_on_as_one_after_a_rank_was_killed(
    tiny_folder: Path, make_groups: MakeGroups, tmp_path: Path
) -> None:
    batches = [make_groups(seed, group_size=4) for seed in range(3)]
    stop = threading.Event()
    alone = Session(settings_of(tiny_folder, tmp_path / "alone", weights="full"))
    alone.restore()
    figures = [alone.rollout_step(groups, quiet, stop) for groups in batches]
    alone.export(tmp_path / "alone" / "model")

    settings = settings_of(tiny_folder, tmp_path / "gang", weights="full")
    with opened(Gang(settings, 2, tmp_path / "ranks")) as gang:
        assert gang.restore() is None
        seen: list[tuple[int, int]] = []
        first = gang.rollout_step(batches[0], lambda *counts: seen.append(counts), stop)
        assert first == pytest.approx(figures[0], rel=1e-4, abs=1e-6)
        assert first["kl"] == 0.0
        assert seen and seen[-1][0] == seen[-1][1]
        gang.save(Restored(step=1, policy_version=1, state={"cursor": 5}))
        os.kill(gang.process_ids[1], signal.SIGKILL)
        with pytest.raises(Unavailable, match=r"rank 1 of 2 was killed by SIGKILL; resume the run"):
            gang.rollout_step(batches[1], quiet, stop)
        with pytest.raises(Unavailable):
            gang.rollout_step(batches[1], quiet, stop)

    # One process reads what two have written, and two what one has.
    single = Session(settings)
    restored = single.restore()
    assert restored == Restored(step=1, policy_version=1, state={"cursor": 5})
    second = single.rollout_step(batches[1], quiet, stop)
    assert second == pytest.approx(figures[1], rel=1e-4, abs=1e-6)
    single.save(Restored(step=2, policy_version=2, state={}))

    with opened(Gang(settings, 2, tmp_path / "ranks")) as gang:
        assert gang.restore().step == 2
        third = gang.rollout_step(batches[2], quiet, stop)
        assert third == pytest.approx(figures[2], rel=1e-4, abs=1e-6)
        gang.export(tmp_path / "gang" / "model")
        ended = threading.Event()
        ended.set()
        with pytest.raises(Stopped):
            gang.rollout_step(batches[2], quiet, ended)
    found, wanted = (
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("gang", "alone")
    )
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-5)


@pytest.fixture
def float32_product() -> Iterator[None]:
    """Leaves the process with the product that it had: other tests multiply too."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


@pytest.mark.usefixtures("float32_product")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_goes_on_with_the_float32_product_that_its_checkpoint_names(
    tiny_folder: Path, tmp_path: Path, processes: int
) -> None:
    settings = settings_of(tiny_folder, tmp_path, kl_coef=0.0)
    state = settings.checkpoints / "step-00000000" / "state.json"
    start = Restored(step=0, policy_version=0, state={})

    def goes_on() -> str:
        found: Any = Session(settings)
        if processes > 1:
            found = Gang(settings, processes, tmp_path / "ranks")
        with opened(found):
            assert found.restore() == start
            found.save(start)
        return str(json.loads(state.read_text())["float32_backend"])

    with opened(Session(settings)) as first:
        first.restore()
        first.save(start)
    for backend in ("onednn", "mkl"):
        told = json.loads(state.read_text()) | {"float32_backend": backend}
        state.write_text(json.dumps(told))
        assert goes_on() == tune_compute(1, backend).float32_backend


@pytest.mark.usefixtures("float32_product")
@pytest.mark.parametrize("said", ["onednn", "mkl"])
def test_a_rank_multiplies_float32_with_what_the_first_rank_says(
    tiny_folder: Path, tmp_path: Path, said: str
) -> None:
    class Told(Alone):
        def tell(self, text: str) -> str:
            return said

    with opened(Session(settings_of(tiny_folder, tmp_path, kl_coef=0.0), Told())) as rank:
        assert rank.restore() is None
    assert float32_backend_in_use() == tune_compute(1, said).float32_backend


def test_ranks_share_the_threads_of_one_process_unless_the_user_says_how_many_each_takes() -> None:
    def threads(count: int, asked: int = 0, **inherited: str) -> str:
        return rank_environment(1, count, asked, inherited)["OMP_NUM_THREADS"]

    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        assert [threads(count) for count in (2, 4, 8)] == ["3", "1", "1"]
    finally:
        torch.set_num_threads(before)
    assert threads(2, 5) == "5"
    assert threads(2, OMP_NUM_THREADS="7") == "7"


def test_a_rank_that_hangs_ends_the_step(
    tiny_folder: Path, make_groups: MakeGroups, tmp_path: Path
) -> None:
    settings = settings_of(tiny_folder, tmp_path, kl_coef=0.0)
    (tmp_path / "ranks" / "meet-of-a-killed-learner").mkdir(parents=True)
    with opened(Gang(settings, 2, tmp_path / "ranks")) as gang:
        gang.restore()
        gang.silence_seconds = 2.0
        os.kill(gang.process_ids[1], signal.SIGSTOP)
        with pytest.raises(Unavailable, match="rollout_step: no progress for 2 s"):
            gang.rollout_step(make_groups(0), quiet, threading.Event())
    assert {file.name for file in (tmp_path / "ranks").iterdir()} == {"rank-0.log", "rank-1.log"}


@pytest.mark.parametrize(
    ("rank", "state"), [(1, {}), (0, {"more than a socket holds": "x" * (4 << 20)})]
)
def test_a_rank_that_hangs_ends_a_save_and_leaves_no_checkpoint(
    tiny_folder: Path, tmp_path: Path, rank: int, state: dict[str, str]
) -> None:
    settings = settings_of(tiny_folder, tmp_path, kl_coef=0.0)
    with opened(Gang(settings, 2, tmp_path / "ranks")) as gang:
        gang.restore()
        gang.silence_seconds = 2.0
        os.kill(gang.process_ids[rank], signal.SIGSTOP)
        with pytest.raises(
            Unavailable, match=r"save: no progress for 2 s .* one of the 2 training ranks hangs"
        ):
            gang.save(Restored(step=0, policy_version=0, state=state))
        gone = gang.process_ids
    assert not any(Path(f"/proc/{process}").exists() for process in gone)
    assert latest_checkpoint(settings.checkpoints) is None


def test_ranks_that_do_not_get_through_restore_are_ended(tiny_folder: Path, tmp_path: Path) -> None:
    settings = settings_of(tiny_folder, tmp_path)
    with (
        opened(Gang(settings, 2, tmp_path / "ranks", silence_seconds=0.1)) as gang,
        pytest.raises(Unavailable, match=r"restore: no progress for 0\.1 s"),
    ):
        gang.restore()


def test_whoever_tells_all_processes_to_end_leaves_the_ranks_to_the_learner(
    tiny_folder: Path, make_groups: MakeGroups, tmp_path: Path
) -> None:
    # As a terminal does at Ctrl-C, and systemd: the learner ends a step and a run in order, if its ranks let it.
    settings = settings_of(tiny_folder, tmp_path, kl_coef=0.0)
    with opened(Gang(settings, 2, tmp_path / "ranks")) as gang:
        gang.restore()
        for rank in gang.process_ids:
            assert os.getpgid(rank) != os.getpgid(0)
            os.kill(rank, signal.SIGINT)
            os.kill(rank, signal.SIGTERM)
        assert gang.rollout_step(make_groups(0), quiet, threading.Event())["updates"] == 1.0
        gang.save(Restored(step=1, policy_version=1, state={}))


def test_gradients_are_equal_however_a_batch_is_laid_out_and_by_two_ranks(tmp_path: Path) -> None:
    out = tmp_path / "equality.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(out.read_text())
    for weights in ("lora", "full"):
        # One pass of all rows, several trees, several trees over two ranks, and a rank without any.
        parts = told[weights]["micro_batches"]
        assert parts["shared"] == parts["idle rank"] == 1
        assert parts["micro-batches"] == parts["two ranks"] > 2
        for name, differences in told[weights]["differences"].items():
            assert max(differences.values()) <= 1e-5, name
    assert len(told["algorithms"]) == 10
    for case, largest in told["algorithms"].items():
        assert largest <= 1e-5, case
    assert "model.embed_tokens.weight" in told["full"]["differences"]["two ranks"]


def test_ranks_that_cannot_open_the_run_say_why(tmp_path: Path, tiny_folder: Path) -> None:
    settings = settings_of(tmp_path / "nowhere", tmp_path)
    with (
        opened(Gang(settings, 2, tmp_path / "ranks")) as gang,
        pytest.raises(ValueError, match=r"model\.path: .*nowhere' cannot be opened"),
    ):
        gang.restore()


LEARNER = """
import sys, pickle, threading, time
from pathlib import Path
from learner.workers.gang import Gang
settings, logs = pickle.load(sys.stdin.buffer)
gang = Gang(settings, 2, Path(logs))
threading.Thread(target=gang.restore, daemon=True).start()
while len(gang.process_ids) < 2:
    time.sleep(0.01)
print(*gang.process_ids, flush=True)
threading.Event().wait()
"""
"""A learner whose ranks begin."""


def test_ranks_end_when_their_learner_is_killed_also_while_they_wait_for_each_other(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    learner = subprocess.Popen(
        [sys.executable, "-c", LEARNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert learner.stdin is not None and learner.stdout is not None
    with learner, learner.stdin as asks, learner.stdout as says:
        pickle.dump((settings_of(tiny_folder, tmp_path), str(tmp_path / "ranks")), asks)
        asks.flush()
        ranks = [int(pid) for pid in says.readline().split()]
        ends = [os.pidfd_open(pid) for pid in ranks]
        try:
            # The first one waits for a second one that does not come.
            os.kill(ranks[1], signal.SIGSTOP)
            learner.kill()
            assert select.select(ends[:1], [], [], 30)[0], "the first rank outlived its learner"
            # The system ends a stopped group of processes that became an orphan.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(ends[1], signal.SIGCONT)
            assert select.select(ends[1:], [], [], 30)[0], "the second rank outlived its learner"
        finally:
            for end in ends:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(end, signal.SIGKILL)
                os.close(end)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_rank_that_ended_first_is_named_and_not_one_that_was_ended_because_of_it(
    tiny_folder: Path, make_groups: MakeGroups, tmp_path: Path
) -> None:
    settings = settings_of(tiny_folder, tmp_path, kl_coef=0.0)
    with opened(Gang(settings, 2, tmp_path / "ranks")) as gang:
        gang.restore()
        # It cannot see that the first one ends, so that it has to be killed.
        os.kill(gang.process_ids[1], signal.SIGSTOP)
        os.kill(gang.process_ids[0], signal.SIGHUP)
        with pytest.raises(Unavailable, match="rank 0 of 2 was killed by SIGHUP"):
            gang.rollout_step(make_groups(0), quiet, threading.Event())
