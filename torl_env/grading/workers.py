"""math-verify in worker processes that can be killed.

A computer algebra system given a model's formula may run for ever or take the process down. math-verify's own time-outs
are signals, which work on the main thread alone and are swallowed elsewhere; a thread cannot be ended at all. So the
question goes to another process, a clean interpreter and no fork of this one (which may hold an engine and its
threads), and what does not answer in time is killed and replaced.

Two lanes keep slow questions out of the way of quick ones. Every question starts in the quick lane; one that costs more
than `quick_s` of processor time gives its place up. It goes on in the patient lane if that has a place, otherwise it is
killed and asked anew when there is one (`TooSlowError` tells a caller that would rather not wait for that). The quick
lane is the wider one: beside many questions that hang, a short one is not alone with two of them at a time.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torl_env.grading import _worker

_START_S = 120.0  # importing sympy takes a second, on a busy machine many; a fork milliseconds
_QUICK_WIDTH = 3  # quick places for each patient one; with more, all of them starve beside other work on the machine


class TooSlowError(Exception):
    """The quick lane could not answer, and the patient lane has to be waited for."""


class _StarvedError(Exception):
    """Other processes left a question too little processor time to tell whether it is a slow one."""


class _LostError(Exception):
    """A process has died, or could not be started."""


class _Parent:
    """The process that has imported math-verify and forks the workers."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(_worker.__file__))],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is not for it
            )
        self._control.settimeout(_START_S)
        try:
            ready = self._control.recv(1)
        except OSError:
            ready = b""
        if not ready:
            self.kill()
            raise _LostError

    def fork(self) -> "_Worker":
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            return _Worker(ours)
        except (_LostError, OSError):
            ours.close()
            raise

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._control.close()


class _Worker:
    """A forked process that answers questions; used by one thread at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._unread = b""
        self.asked_at = 0.0  # in `time.monotonic` seconds
        self.pid: int = self._read(time.monotonic() + _START_S)["pid"]

    def ask(self, gold: str, answer: str) -> None:
        """Send a question, of which `reply` reads the answer."""
        self.asked_at = time.monotonic()
        self._channel.settimeout(None)
        self._channel.sendall(json.dumps({"gold": gold, "answer": answer}).encode() + b"\n")

    def reply(self, limit_s: float) -> bool | None:
        """Return the answer to the question asked.

        Raises:
            TimeoutError: if there is none within `limit_s`; it may be waited for again.
            _LostError: if the process died over it.
        """
        return self._read(time.monotonic() + limit_s)["verdict"]

    @property
    def cpu_s(self) -> float:
        """Processor time used so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def reply_within_cpu(self, limit_s: float, wall_limit_s: float) -> bool | None:
        """Return the answer; a busy machine makes a simple question slow, but not dear.

        Raises:
            TimeoutError: once it has cost `limit_s` of processor time.
            _StarvedError: if it had less than that in `wall_limit_s` of wall time.
            _LostError: if the process died over it.
        """
        deadline = time.monotonic() + wall_limit_s
        start = self.cpu_s
        left = limit_s
        while True:
            try:
                return self.reply(min(max(left, 0.01), deadline - time.monotonic()))
            except TimeoutError:
                left = limit_s - (self.cpu_s - start)
                if left <= 0:
                    raise
                if time.monotonic() >= deadline:
                    raise _StarvedError from None

    def kill(self) -> None:
        """End the process, with whatever it may have started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._channel.close()

    def _read(self, deadline: float) -> dict[str, Any]:
        while not self._unread.endswith(b"\n"):
            self._channel.settimeout(max(1e-6, deadline - time.monotonic()))
            chunk = self._channel.recv(4096)
            if not chunk:
                raise _LostError
            self._unread += chunk
        line, self._unread = self._unread, b""
        return json.loads(line)


class GradingWorkers:
    """Up to `max_workers` processes in the patient lane, three times as many in the quick one; for any thread.

    They are started when first needed, and `max_workers` of them are kept.

    Attributes:
        quick: threads for quick questions, enough of them that a full patient lane leaves the quick one its own.
        patient: threads for those that raised `TooSlowError`.
    """

    def __init__(self, max_workers: int, limit_s: float = 3.0, quick_s: float = 0.1) -> None:
        """Set the limits for one comparison: `limit_s` in wall time, `quick_s` in processor time.

        Of 387 comparisons of formulas in the public sets half took 8 ms of processor time, 97% under 0.1 s, all under
        0.5 s.
        """
        self.max_workers = max_workers
        self.limit_s = limit_s
        self.quick_s = quick_s
        self.num_lost = 0  # questions that ran into `limit_s` or killed their worker: each an unknown verdict
        num_quick = _QUICK_WIDTH * max_workers
        self.quick = ThreadPoolExecutor(num_quick + max_workers, "grading-quick")  # no thread starts before its work
        self.patient = ThreadPoolExecutor(max_workers, "grading-patient")
        self._quick_places = threading.BoundedSemaphore(num_quick)
        self._patient_places = threading.BoundedSemaphore(max_workers)
        self._lock = threading.Lock()
        self._fork_lock = threading.Lock()
        self._parent: _Parent | None = None
        self._idle: list[_Worker] = []
        self._closed = False

    def is_equal(self, gold: str, answer: str) -> bool | None:
        r"""Return whether two LaTeX expressions are mathematically equal, None if that cannot be found out.

        Args:
            gold: without "\boxed" and "$".
            answer: likewise.
        """
        try:
            return self.is_equal_quick(gold, answer)
        except TooSlowError:
            return self.is_equal_patient(gold, answer)

    def is_equal_quick(self, gold: str, answer: str) -> bool | None:
        """Ask in the quick lane, and go on in the patient lane if it has a place; raises TooSlowError if not."""
        with contextlib.ExitStack() as held:
            held.enter_context(self._quick_places)
            try:
                worker, verdict = self._ask(gold, answer, self.quick_s)
            except _LostError:
                return self._lost()
            except _StarvedError:
                raise TooSlowError from None
            if worker is None:
                return verdict
            if not self._patient_places.acquire(blocking=False):
                worker.kill()
                raise TooSlowError
            held.close()  # from here on another question may use the quick place
            held.callback(self._patient_places.release)
            return self._wait(worker)

    def is_equal_patient(self, gold: str, answer: str) -> bool | None:
        """Ask in the patient lane, waiting for a place in it."""
        with self._patient_places:
            try:
                worker, verdict = self._ask(gold, answer, self.limit_s)
            except (_LostError, _StarvedError):
                return self._lost()
            return verdict if worker is None else self._wait(worker)

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more work."""
        return self._closed

    def close(self) -> None:
        """End all processes and take no more work; a question that one of them is at is unknown."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()
        with self._fork_lock:
            if self._parent is not None:
                self._parent.kill()
        self.quick.shutdown(wait=False, cancel_futures=True)
        self.patient.shutdown(wait=False, cancel_futures=True)

    def _ask(self, gold: str, answer: str, limit_s: float) -> tuple[_Worker | None, bool | None]:
        """Return (None, verdict), or the worker that is still at it after `limit_s`.

        A worker may have died while it was idle, which costs no verdict: the question is asked once more.

        Raises:
            _LostError: if it killed two workers.
            _StarvedError: if `self.limit_s` was over before it had cost `limit_s`.
        """
        for last in (False, True):
            worker = self._take()
            try:
                worker.ask(gold, answer)
                verdict = worker.reply_within_cpu(limit_s, self.limit_s)
            except TimeoutError:
                return worker, None
            except _StarvedError:
                worker.kill()
                raise
            except (_LostError, OSError):
                worker.kill()
                if last:
                    raise _LostError from None
            else:
                self._put_back(worker)
                return None, verdict
        raise AssertionError

    def _wait(self, worker: _Worker) -> bool | None:
        """Return the reply of a worker that has its question, or end it when its limit is over."""
        try:
            verdict = worker.reply(worker.asked_at + self.limit_s - time.monotonic())
        except (_LostError, OSError):  # TimeoutError is one
            worker.kill()
            return self._lost()
        self._put_back(worker)
        return verdict

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        for last in (False, True):
            parent = None
            try:
                with self._fork_lock:
                    if self._closed:
                        raise _LostError
                    parent = self._parent = self._parent or _Parent()
                return parent.fork()  # outside the lock: on a busy machine the child's first word takes its time
            except (_LostError, OSError):
                self._discard(parent)
                if last:
                    raise _LostError from None
        raise AssertionError

    def _discard(self, parent: _Parent | None) -> None:
        with self._fork_lock:
            if parent is not None and parent is self._parent:
                parent.kill()
                self._parent = None

    def _put_back(self, worker: _Worker) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < self.max_workers:
                self._idle.append(worker)
                return
        worker.kill()

    def _lost(self) -> bool | None:
        with self._lock:
            self.num_lost += 1
        return None


_lock = threading.Lock()
_workers: dict[int, GradingWorkers] = {}  # by process id: a fork must not share its parent's pipes


def shared_workers() -> GradingWorkers:
    """Return this process's workers: in each lane as many as cores it may use, at most four."""
    with _lock:
        workers = _workers.get(os.getpid())
        if workers is None or workers.is_closed:
            _workers.clear()
            workers = _workers[os.getpid()] = GradingWorkers(max_workers=min(4, len(os.sched_getaffinity(0))))
            atexit.register(workers.close)
        return workers
