"""The warm interpreter every program is forked from, and the interpreter that prepares its namespaces.

    sandbox process --(control socket: a request and five descriptors a run)--> zygote --fork--> program

Runs inside the sandbox's own interpreters: started by `process.py` from memory, with an environment of its own. One
thread, so that forking is safe; only ends of file tie the processes together, so that nothing outlives its owner.
"""

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import select
import signal
import socket
import sys
from typing import Any

from torl_env.sandbox import confine, kernel, priority, program, root, seccomp, tree

# What short programs import most: paid once here, not by every program.
_STANDARD = (
    "bisect cmath collections copy datetime decimal fractions functools heapq inspect itertools json math operator "
    "random re statistics string time typing"
)
_MAX_MESSAGE_BYTES = 65536


def launch(plan: dict[str, Any], bootstrap: list[str], control_fd: int) -> None:
    """Enter the namespaces and start the zygote in them; this process only waits for it.

    `bootstrap` is the zygote's command line but for its last argument, the number of a descriptor of the host's /proc.
    """
    try:
        bootstrap.append(str(_prepare(plan)))
        zygote = os.fork()  # the first process of the pid namespace: when it ends, so does everything in there
        if zygote == 0:
            kernel.die_with_parent()
            os.execve(bootstrap[0], bootstrap, plan["environment"])
    except Exception as error:
        _fail(control_fd, error)
    os.close(control_fd)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(zygote, signal.SIGKILL))
    _, status = os.waitpid(zygote, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _prepare(plan: dict[str, Any]) -> int:
    kinds = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    uid, gid = os.geteuid(), os.getegid()
    if plan["own_user_namespace"]:
        kernel.unshare(kinds | kernel.CLONE_NEWUSER)
        inner = plan["inner_id"]
        for name, line in (("setgroups", "deny"), ("uid_map", f"{inner} {uid} 1"), ("gid_map", f"{inner} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
        kernel.keep_capabilities_over_exec()
    else:
        kernel.unshare(kinds)
    socket.sethostname("sandbox")
    root.enter_private_root(plan["root"])
    root.mount_run_directory("size=16m,mode=755")
    for name in root.RUN_SUBDIRECTORIES:
        os.mkdir(f"{root.RUN_DIRECTORY}/{name}")
    os.set_inheritable(proc, True)
    return proc


def _fail(control_fd: int, error: BaseException) -> None:
    with contextlib.suppress(OSError):
        socket.socket(fileno=control_fd).send(marshal.dumps(("failed", f"{error}")))
    os._exit(1)


def start(plan: dict[str, Any], control_fd: int, proc: int | None) -> dict[str, Any]:
    """Warm up, serve, and return a program: in the process of that program only, confined."""
    control = socket.socket(fileno=control_fd)
    try:
        setting = _set_up(plan, proc)
        control.send(marshal.dumps(("ready",)))
    except Exception as error:
        if not plan["strict"]:
            tree.remove_tree(plan["base_directory"])  # the owner may be gone
        _fail(control_fd, error)
    task = _serve(control, setting)
    program.reseed(task["seed"])
    return task


def _reset_signals() -> None:
    """Undo what the owner's parents did to signals: a shell's background jobs, for one, ignore SIGINT."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python ignores these two
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _set_up(plan: dict[str, Any], proc: int | None) -> confine.Setting:
    kernel.set_dumpable(False)
    _reset_signals()
    abi = kernel.landlock_abi()
    if not abi:
        raise OSError(
            "the kernel has no Landlock, or it is not enabled (needs Linux 5.13 and `landlock` among its LSMs)"
        )
    strict = plan["strict"]
    filters = {allow: seccomp.build_filter(allow_subprocess=allow, private_root=strict) for allow in {False, strict}}
    if not plan["strict"]:
        os.environ["MPLCONFIGDIR"] = plan["base_directory"] + "/matplotlib"
    _warm_up(plan["packages"])
    statm = os.open("self/statm", os.O_RDONLY, dir_fd=proc) if proc is not None else os.open("/proc/self/statm", 0)
    address_space = int(os.read(statm, 100).split()[0]) * os.sysconf("SC_PAGE_SIZE")
    os.close(statm)
    rules = [(os.open(path, os.O_PATH), kernel.READ, os.path.isfile(path)) for path in plan["readable"]]
    rules += [(os.open(path, os.O_PATH), kernel.FS_READ_DIR, False) for path in plan["listable"]]
    rules += [(os.open(path, os.O_PATH), kernel.DEVICE, True) for path in plan["devices"]]
    return confine.Setting(
        strict=plan["strict"],
        first_uid=plan["first_uid"],
        own_user_namespace=plan["own_user_namespace"],
        base_directory=plan["base_directory"],
        landlock_abi=abi,
        rules=rules,
        proc=proc,
        address_space=address_space,
        filters=filters,
    )


def _warm_up(packages: list[str]) -> None:
    import site

    site.setquit()
    site.setcopyright()
    site.sethelper()
    for name in [*_STANDARD.split(), *packages]:
        with contextlib.suppress(ImportError):  # not installed
            importlib.import_module(name)
    if "sympy" in sys.modules:
        sympy = sys.modules["sympy"]
        x = sympy.Symbol("x")
        sympy.solve(x**2 - 1, x)  # its first call imports and caches for 90 ms
    if "matplotlib.pyplot" in sys.modules:
        figure = sys.modules["matplotlib.pyplot"].figure()
        figure.savefig(os.devnull, format="png")  # the renderer and the font cache
        sys.modules["matplotlib.pyplot"].close(figure)
    program.warm_up()
    atexit._clear()  # what the packages registered is not the programs' to run
    gc.collect()
    gc.freeze()  # else every program's first collection copies all pages of the zygote


def _serve(control: socket.socket, setting: confine.Setting) -> dict[str, Any]:
    """Fork per message until the control socket ends; return the program, in its own process only."""
    runs: dict[int, tuple[int, int]] = {}  # pidfd: (run, pid)
    ranks = priority.Ranks(dies_with_parent=setting.strict)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for fd, _ in poll.poll(ranks.lower_busy()):
            if fd in runs:
                poll.unregister(fd)
                run, pid = runs.pop(fd)
                os.close(fd)
                ranks.forget(pid)
                _tell_end(control, run, pid)
                continue
            message, fds, _, _ = socket.recv_fds(control, _MAX_MESSAGE_BYTES, 5)
            if not message:
                _end(runs, setting)
            request = marshal.loads(message)
            pid = _fork(setting, request)
            if pid == 0:
                control.close()
                return confine.enter(setting, request, fds)
            for received in fds:
                os.close(received)
            ranks.add(pid, confine.user_id(setting, request), subprocess=request["subprocess"])
            pidfd = os.pidfd_open(pid)
            runs[pidfd] = (request["id"], pid)
            poll.register(pidfd, select.POLLIN)


def _fork(setting: confine.Setting, request: dict[str, Any]) -> int:
    if not request["subprocess"]:
        return os.fork()
    home = os.open("self/ns/pid", os.O_RDONLY, dir_fd=setting.proc)
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        kernel.setns(home, kernel.CLONE_NEWPID)
    os.close(home)
    return pid


def _tell_end(control: socket.socket, run: int, pid: int) -> None:
    _, status, usage = os.wait4(pid, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    with contextlib.suppress(BrokenPipeError):
        control.send(marshal.dumps(("ended", run, status, cpu_s, usage.ru_maxrss)))


def _end(runs: dict[int, tuple[int, int]], setting: confine.Setting) -> None:
    """The owner is gone: end what runs and leave nothing behind."""
    for pidfd in runs:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    for _, pid in runs.values():
        os.waitpid(pid, 0)
    if not setting.strict:
        tree.remove_tree(setting.base_directory)
    os._exit(0)
