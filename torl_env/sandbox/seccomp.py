"""The system calls a program may make, as a seccomp filter: a classic BPF program, written by hand.

Three layers: another architecture's calls end the program; calls that leave the sandbox, change who or where one is, or
outlive the run answer EPERM; whatever is newer than this list answers ENOSYS, as on an older kernel, so that a call
nobody has judged is never allowed (clone3 among them: its flags lie in memory, which a filter cannot read).
"""

import errno
import os
import struct

_MAX_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_CLONE_THREAD, _CLONE_NAMESPACES = 0x00010000, 0x7E020000
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF
_FIRST_JUDGED_APART = {"x86_64": 335, "aarch64": 424}  # from here on only those of `_NEW` are allowed
_NEW = (436, 437, 439, 449, 452)  # close_range, openat2, faccessat2, futex_waitv, fchmodat2
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_OWN_PID = 0x7E57ED  # stands for the program's process id in the template; larger than any id

# name: (x86-64, aarch64); None where the architecture lacks it. Their order is that of kind, not of number.
_DENIED = """
execve 59 221, execveat 322 281, fork 57 -, vfork 58 -, setpgid 109 154,
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, tkill 200 130,
unshare 272 97, setns 308 268, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51,
name_to_handle_at 303 264, open_by_handle_at 304 265, fanotify_init 300 262, quotactl 179 60, lookup_dcookie 212 18,
swapon 167 224, swapoff 168 225, acct 163 89, sync 162 81, syncfs 306 267, vhangup 153 58, uselib 134 -,
reboot 169 142, kexec_load 246 104, kexec_file_load 320 294, syslog 103 116, sethostname 170 161,
setdomainname 171 162, init_module 175 105, finit_module 313 273, delete_module 176 106, iopl 172 -, ioperm 173 -,
modify_ldt 154 -, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, seccomp 317 277, personality 135 92,
add_key 248 217, request_key 249 218, keyctl 250 219, settimeofday 164 170, clock_settime 227 112, adjtimex 159 171,
clock_adjtime 305 266, mbind 237 235, set_mempolicy 238 237, migrate_pages 256 238, move_pages 279 239,
setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143, setgroups 116 159, setresuid 117 147,
setresgid 119 149, setfsuid 122 151, setfsgid 123 152, capset 126 91,
socket 41 198, connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242,
memfd_create 319 279, io_setup 206 0,
shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193, semctl 66 191, semtimedop 220 192,
msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180, mq_unlink 241 181,
sched_setparam 142 118, sched_setscheduler 144 119, sched_setattr 314 274, setpriority 141 140, ioprio_set 251 30
"""
# Allowed to `allow_subprocess` programs.
_FOR_SUBPROCESSES = {"execve", "execveat", "fork", "vfork", "setpgid", "tkill"}
# What Landlock does not look at, or not in its first versions: changes to a file that is no write to it, and watching
# a directory. Denied where the host's file system is not out of reach anyway.
_BEYOND_LANDLOCK = """
chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54,
utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, truncate 76 45,
setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16,
inotify_add_watch 254 27, openat2 437 437, fchmodat2 452 452
"""
_OPEN, _OPENAT, _O_TRUNC, _O_ACCMODE = 2, (257, 56), 0o1000, 0o3
# Calls on a process: the first argument must be the program itself (or 0 where that means the same).
_ON_ITSELF = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
}
_ZERO_IS_ITSELF = {"prlimit64", "sched_setaffinity"}
# A descriptor's owner gets signals by way of the descriptor: F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP;
# F_SETLEASE and F_NOTIFY hold up or watch others' use of a file; TIOCSTI, TIOCLINUX type into a terminal.
# F_SETPIPE_SZ makes the kernel hold more memory than a program may have itself.
_DENIED_COMMANDS = {
    "fcntl": ((72, 25), (8, 10, 15, 1024, 1026, 1031)),
    "ioctl": ((16, 29), (0x8901, 0x8902, 0x5412, 0x541C)),
}
# So do SO_SNDBUF, SO_RCVBUF and what forces them: megabytes for each of a few hundred descriptors.
_SETSOCKOPT, _BUFFER_SIZES = (54, 208), (7, 8, 32, 33)
# Of prctl only what is about the program's own looks: PR_GET_DUMPABLE, SET_NAME, GET_NAME, CAPBSET_READ, SET_VMA.
_PRCTL, _PRCTL_ALLOWED = (157, 167), (3, 15, 16, 23, 0x53564D41)
_CLONE, _SENDTO, _SOCKETPAIR = (56, 220), (44, 206), (53, 199)

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def build_filter(
    *, allow_subprocess: bool, private_root: bool = True, machine: str | None = None
) -> tuple[bytes, tuple[int, ...]]:
    """Return the filter's instructions and where in them the program's process id goes; see `for_process`.

    Args:
        allow_subprocess: whether processes may be started.
        private_root: whether the host's files are out of reach; if not, what Landlock does not cover is denied too.
        machine: the architecture; None for this one.

    Raises:
        ValueError: on an architecture whose system calls are not listed here.
    """
    machine = machine or os.uname().machine
    if machine not in _AUDIT_ARCH:
        raise ValueError(f"no list of system calls for {machine!r}; isolated programs run on x86_64 and aarch64")
    column = ("x86_64", "aarch64").index(machine)
    program: list[_Instruction] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), (_RETURN, 0, 0, _KILL)]
    program += [(_LOAD, 0, 0, 0), (_AT_LEAST, 0, 1, _MAX_X32), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    if not allow_subprocess:
        for name, numbers in _ON_ITSELF.items():
            same = (0, _OWN_PID) if name in _ZERO_IS_ITSELF else (_OWN_PID,)
            program += _on_argument(numbers[column], 0, allowed=same)
    for numbers, commands in _DENIED_COMMANDS.values():
        program += _on_argument(numbers[column], 1, denied=commands)
    program += _on_argument(_PRCTL[column], 0, allowed=_PRCTL_ALLOWED)
    program += _clone(_CLONE[column], allow_subprocess)
    # An address on a datagram socket would reach any socket of the same user; only connected streams can be made.
    program += _on_argument(_SENDTO[column], 4, allowed=(0,))
    program += _socketpair(_SOCKETPAIR[column])
    program += _on_argument(_SETSOCKOPT[column], 2, denied=_BUFFER_SIZES)
    if not private_root:
        if column == 0:
            program += _open(_OPEN, 1)
        program += _open(_OPENAT[column], 2)
    denied: list[int] = []
    for line in (_DENIED if private_root else f"{_DENIED.rstrip()},{_BEYOND_LANDLOCK}").replace("\n", " ").split(","):
        name, *listed = line.split()
        if listed[column] != "-" and not (allow_subprocess and name in _FOR_SUBPROCESSES):
            denied.append(int(listed[column]))
    rest: list[_Instruction] = []
    for number in _NEW:
        rest += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    rest += [(_AT_LEAST, 0, 1, _FIRST_JUDGED_APART[machine]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    rest += [(_RETURN, 0, 0, _ALLOW)]
    # One shared answer at the end, within a jump's 255 instructions: the kernel translates the filter for each run.
    program += [(_EQUAL, len(denied) - i - 1 + len(rest), 0, number) for i, number in enumerate(denied)]
    program += [*rest, (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    places = tuple(8 * i + 4 for i, instruction in enumerate(program) if instruction[3] == _OWN_PID)
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program), places


def for_process(program: bytes, places: tuple[int, ...], pid: int) -> bytes:
    """Return the filter for the process `pid`."""
    patched = bytearray(program)
    for place in places:
        struct.pack_into("I", patched, place, pid)
    return bytes(patched)


def _argument(index: int) -> _Instruction:
    return _LOAD, 0, 0, 16 + 8 * index  # its low half: both architectures are little-endian


def _on_argument(
    number: int, index: int, *, allowed: tuple[int, ...] | None = None, denied: tuple[int, ...] = ()
) -> list[_Instruction]:
    """For one call: allow it for the listed values of an argument only, or for all but the listed ones."""
    listed, otherwise = (_ALLOW, _ERRNO | errno.EPERM) if allowed is not None else (_ERRNO | errno.EPERM, _ALLOW)
    body = [_argument(index)]
    for value in allowed if allowed is not None else denied:
        body += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, listed)]
    body.append((_RETURN, 0, 0, otherwise))
    return [(_EQUAL, 0, len(body), number), *body]


def _open(number: int, index: int) -> list[_Instruction]:
    """Deny to empty a file that is opened for reading: Landlock's first two versions take that for reading."""
    mask = (0x54, 0, 0, _O_TRUNC | _O_ACCMODE)
    body = [_argument(index), mask, (_EQUAL, 0, 1, _O_TRUNC), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    body.append((_RETURN, 0, 0, _ALLOW))
    return [(_EQUAL, 0, len(body), number), *body]


def _clone(number: int, allow_subprocess: bool) -> list[_Instruction]:
    """Threads always, processes by request, new namespaces never."""
    denied = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    body = [_argument(0), (_ANY_BIT, 0, 1, _CLONE_NAMESPACES), denied]
    if not allow_subprocess:
        body += [(_ANY_BIT, 1, 0, _CLONE_THREAD), denied]
    body.append((_RETURN, 0, 0, _ALLOW))
    return [(_EQUAL, 0, len(body), number), *body]


def _socketpair(number: int) -> list[_Instruction]:
    denied = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    mask = (0x54, 0, 0, _SOCK_TYPE_MASK)
    body = [_argument(0), (_EQUAL, 1, 0, _AF_UNIX), denied]
    body += [_argument(1), mask, (_EQUAL, 1, 0, _SOCK_STREAM), denied, (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(body), number), *body]
