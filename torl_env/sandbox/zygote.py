"""The clean interpreter every program is forked from; started by `process.py` as a file, it imports nothing of ours.

    sandbox process --(control socket: three descriptors a run)--> zygote
        zygote --fork--> keeper, one a run: adopts and kills whatever the program leaves behind
            keeper --fork--> program, in a session, directory and with limits of its own

A fork costs a millisecond where a new interpreter costs twenty. Only ends of file tie the processes together, so that
nothing outlives its owner: the keeper kills the program when its channel closes, the zygote exits when the control
socket does, whatever way the other side died. The keeper is a subreaper (prctl): a program that forks twice and
starts a new session is still its descendant.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import types

# What short programs import most: paid once here, not by every program. `random` reseeds itself after a fork.
_PRELOADED = ("collections", "datetime", "decimal", "fractions", "functools", "itertools", "math", "random", "re")
REQUEST = struct.Struct("!QQQQ")  # bytes of code, CPU seconds, bytes of memory, bytes of one written file
REPLY = struct.Struct("!i")  # exit code as `os.waitstatus_to_exitcode` gives it: negative for a signal
# Compiled, run and failed once before the first fork: doing a thing for the first time in a child costs a millisecond.
_WARM_UP = b"""
import math
def f(x, *rest, key=None):
    total = 0
    for i in range(x):
        total += i ** 2 if i % 2 else -i
    return [total, {"a": key}, (1.5, f"{total:>3}")]
print(f(3), sum(n for n in range(4)), end="")
undefined
"""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)
_TEMPORARY = tempfile.gettempdir()


def serve(control: socket.socket) -> bytes:
    """Fork a keeper per message until the control socket ends; return the code, in the program's process only."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers report on their own channel; the kernel reaps them
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            return keep(*fds)
        for fd in fds:
            os.close(fd)


def keep(channel_fd: int, stdout_fd: int, stderr_fd: int) -> bytes:
    """Fork the program and see to its end; return the code, in the program's process only."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    channel = socket.socket(fileno=channel_fd)
    num_code_bytes, *limits = REQUEST.unpack(_receive(channel, REQUEST.size))
    code = _receive(channel, num_code_bytes)
    directory = os.path.join(_TEMPORARY, f"torl-run-{os.getpid()}-{time.time_ns()}")
    os.mkdir(directory, 0o700)
    program = os.fork()
    if program == 0:
        _confine(channel, stdout_fd, stderr_fd, directory, *limits)
        return code
    os.close(stdout_fd)
    os.close(stderr_fd)
    ended = os.pidfd_open(program)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(channel, select.POLLIN)  # readable at its end of file: the owner wants the run ended, or is gone
    poll.poll()
    exit_code = _kill_descendants(program)
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):  # nobody is left to be told
        channel.sendall(REPLY.pack(exit_code))
    os._exit(0)


def _receive(channel: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        chunk = channel.recv(num_bytes - len(data))
        if not chunk:
            os._exit(1)  # cancelled before it began
        data += chunk
    return bytes(data)


def _confine(
    channel: socket.socket, stdout_fd: int, stderr_fd: int, directory: str, cpu_s: int, memory: int, file_size: int
) -> None:
    """Give the calling process its own session, streams, directory and limits, and nothing else."""
    channel.close()
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.dup2(stdout_fd, 1)
    os.dup2(stderr_fd, 2)
    os.closerange(3, 2**31 - 1)
    os.chdir(directory)
    os.environ["HOME"] = os.environ["TMPDIR"] = directory
    tempfile.tempdir = None
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


def _kill_descendants(program: int) -> int:
    """Kill and reap every descendant of this process; return the program's exit code.

    A killed child's children become ours (subreaper) before it can be reaped, so listing, killing and reaping one
    child in turn reaches all of them, and no child left means no descendant left.
    """
    exit_code = -signal.SIGKILL
    pid, status = os.waitpid(program, os.WNOHANG)
    if pid:
        exit_code = os.waitstatus_to_exitcode(status)
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for child in children.read().split():
                os.kill(int(child), signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return exit_code
        if pid == program:
            exit_code = os.waitstatus_to_exitcode(status)


def run_program(code: bytes) -> int:
    """Run `code` as `python -c` would, up to the return code; the interpreter is not taken down after it."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed survives a kill
    return_code = _execute(code)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the program's threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # a full disk, or whatever the program put in the stream's place
            return_code = return_code or 120  # as Python does
    return return_code


def _execute(code: bytes) -> int:
    sys.argv = ["-c"]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec", dont_inherit=True), main.__dict__)
    except SystemExit as error:
        return _exit_code(error)
    except BaseException as error:
        traceback = error.__traceback__
        error.__traceback__ = traceback.tb_next if traceback else None  # without this function's frame
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except Exception:  # the program put its own in place
            sys.__excepthook__(type(error), error, error.__traceback__)
        return 1
    return 0


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    control_socket = socket.socket(fileno=int(sys.argv[1]))
    for name in _PRELOADED:
        importlib.import_module(name)
    _execute(_WARM_UP)
    sys.stdout.flush()  # to nowhere; what stayed in the buffer would be every program's output
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # else every program's first collection copies all pages of the zygote
    os._exit(run_program(serve(control_socket)))
