"""Processes behind math-verify: limits, replacement, lanes, threads, shutdown."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from torl_env.grading.workers import GradingWorkers, TooSlowError

HANG = "9^{9^{9}}"  # math-verify computes it; the size gate is in front of the workers
EQUAL = ("\\sqrt{8}", "2\\sqrt{2}")


@pytest.fixture(scope="module")
def workers() -> Iterator[GradingWorkers]:
    pool = GradingWorkers(max_workers=1, limit_s=1.0)
    yield pool
    pool.close()


def test_a_hanging_comparison_is_unknown_and_its_child_replaced(workers: GradingWorkers) -> None:
    lost = workers.num_lost
    assert workers.is_equal("5", HANG) is None
    assert workers.num_lost == lost + 1
    parent = workers._parent
    assert workers.is_equal(*EQUAL) is True
    assert workers._parent is parent  # another fork, not another import of sympy


def test_a_worker_killed_while_idle_costs_no_verdict(workers: GradingWorkers) -> None:
    assert workers.is_equal("x", "x") is True
    lost = workers.num_lost
    os.kill(workers._idle[0].pid, signal.SIGKILL)
    assert workers.is_equal(*EQUAL) is True
    assert workers._parent is not None
    workers._parent._process.kill()
    os.kill(workers._idle[0].pid, signal.SIGKILL)
    assert workers.is_equal(*EQUAL) is True
    assert workers.num_lost == lost


def test_too_much_memory_is_unknown(workers: GradingWorkers) -> None:
    lost = workers.num_lost
    assert workers.is_equal("5", "2^{4^{8^{16}}}") is None
    assert workers.num_lost <= lost + 1  # a failed allocation is an answer, a crash a loss
    assert workers.is_equal(*EQUAL) is True


def test_more_callers_than_workers_wait_their_turn(workers: GradingWorkers) -> None:
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda i: workers.is_equal(f"x + {i}", f"{i} + x"), range(16)))
    assert verdicts == [True] * 16
    assert len(workers._idle) == 1


def test_hanging_comparisons_leave_the_quick_lane() -> None:
    pool = GradingWorkers(max_workers=1, limit_s=60.0)
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(pool.is_equal, "5", HANG)
        while pool._patient_places._value:  # until the hanging one has given its quick place up
            assert pool.is_equal_quick(*EQUAL) is True
        with pytest.raises(TooSlowError):
            pool.is_equal_quick("5", HANG)  # the patient lane is full
        assert pool.is_equal_quick(*EQUAL) is True
        assert not hanging.done()
        pool.close()
        assert hanging.result() is None


def test_comparisons_that_hang_leave_a_place_for_a_short_one_before_they_are_given_up() -> None:
    pool = GradingWorkers(max_workers=1, limit_s=60.0, quick_s=10.0)
    assert pool.is_equal(*EQUAL) is True
    hanging = [
        pool.quick.submit(pool.is_equal_quick, "5", HANG) for _ in range(2)
    ]  # ten seconds of processor time each
    assert pool.quick.submit(pool.is_equal_quick, *EQUAL).result() is True
    assert not any(future.done() for future in hanging)
    pool.close()
    assert [future.result() for future in hanging] == [None, None]  # and closing ends what is busy


def test_a_question_that_others_left_no_processor_time_is_late_but_not_lost(
    workers: GradingWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = workers.num_lost
    monkeypatch.setattr(workers, "limit_s", 0.0)  # over before any processor time is used
    with pytest.raises(TooSlowError):
        workers.is_equal_quick("5", HANG)
    assert workers.num_lost == lost


def test_a_crowd_is_not_kept(workers: GradingWorkers) -> None:
    crowd = [workers._take() for _ in range(3)]
    for worker in crowd:
        workers._put_back(worker)
    assert len(workers._idle) == workers.max_workers == 1


def test_workers_end_with_their_owner() -> None:
    script = (
        "import os, signal\n"
        "from torl_env.grading.workers import GradingWorkers\n"
        "pool = GradingWorkers(1)\n"
        "assert pool.is_equal('x', 'x')\n"
        "busy = pool._parent.fork()\n"
        f"busy.ask('5', '{HANG}')\n"
        "print(pool._parent._process.pid, pool._idle[0].pid, busy.pid, flush=True)\n"
        "input()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    processes = [os.pidfd_open(int(pid)) for pid in owner.stdout.readline().split()]
    owner.communicate("\n")
    assert owner.returncode == -signal.SIGKILL
    for process in processes:
        assert select.select([process], [], [], 15)[0], "a worker outlived its owner"
        os.close(process)


def test_closing_ends_the_processes() -> None:
    pool = GradingWorkers(1)
    assert pool.is_equal("x", "x") is True
    worker, parent = os.pidfd_open(pool._idle[0].pid), pool._parent
    pool.close()
    assert select.select([worker], [], [], 30)[0]
    assert parent is not None
    assert parent._process.returncode == -signal.SIGKILL
    os.close(worker)


def test_no_thread_stays_behind(workers: GradingWorkers) -> None:
    before = threading.active_count()
    workers.is_equal("x", "y")
    assert threading.active_count() == before
