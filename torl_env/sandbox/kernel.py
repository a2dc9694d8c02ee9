"""The kernel's isolation calls that Python has no function for, through ctypes.

Runs inside the sandbox's own interpreters too, which see nothing of this package: standard library only.
Numbers and structures are those of the Linux UAPI headers; system calls from 424 on are the same on every architecture.
"""

import ctypes
import os
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x2, 0x4, 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SYS_MOUNT_SETATTR, _SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD, _SYS_LANDLOCK_RESTRICT = 442, 444, 445, 446
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 22, 38, 47
_CAPABILITY_VERSION_3 = 0x20080522

FS_EXECUTE, FS_WRITE_FILE, FS_READ_FILE, FS_READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FS_MAKE_CHAR, _FS_MAKE_BLOCK, _FS_REFER, FS_TRUNCATE, _FS_IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
_FS_FOR_FILES = FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE
_FS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
READ = FS_EXECUTE | FS_READ_FILE | FS_READ_DIR
WRITE = ((1 << 15) - 1) & ~(_FS_MAKE_CHAR | _FS_MAKE_BLOCK)
DEVICE = FS_READ_FILE | FS_WRITE_FILE

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Move this process (and for pid namespaces its next children) into new namespaces."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    """Join the namespace `fd` stands for."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2)."""
    kind_bytes = None if kind is None else kind.encode()
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind_bytes, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def restrict_mount(target: str, attributes: int, *, recursive: bool) -> None:
    """Add `MS_RDONLY`, `MS_NOSUID`, `MS_NODEV` to a mount; the values are mount_setattr's too."""
    attr = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = ctypes.c_uint(_AT_RECURSIVE if recursive else 0)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        flags,
        attr,
        ctypes.c_size_t(len(attr)),
    )
    _check(result, f"mount_setattr {target}")


def pivot_root_here() -> None:
    """Make the current directory, a mount point, the root, and let go of the old one."""
    _check(_libc.syscall(ctypes.c_long(_SYS_PIVOT_ROOT[os.uname().machine]), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", ctypes.c_int(_MNT_DETACH)), "umount2")
    os.chdir("/")


def _prctl(option: int, *arguments: int) -> int:
    values = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return _libc.prctl(ctypes.c_int(option), *values)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent's thread ends; a change of user undoes it."""
    _check(_prctl(_PR_SET_PDEATHSIG, 9), "prctl PDEATHSIG")


def set_dumpable(dumpable: bool) -> None:
    """Choose whether processes of the same user may read this one's memory and /proc entries."""
    _check(_prctl(_PR_SET_DUMPABLE, int(dumpable)), "prctl DUMPABLE")


def no_new_privileges() -> None:
    """Let no exec gain privileges any more; Landlock and seccomp ask for it."""
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl NO_NEW_PRIVS")


def _capset(effective: int, permitted: int, inheritable: int) -> None:
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    low = (effective & 0xFFFFFFFF, permitted & 0xFFFFFFFF, inheritable & 0xFFFFFFFF)
    high = (effective >> 32, permitted >> 32, inheritable >> 32)
    _check(_libc.capset(header, struct.pack("6I", *low, *high)), "capset")


def keep_capabilities_over_exec() -> None:
    """Make the capabilities of a new user namespace survive an exec by an ordinary user id (ambient ones do)."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    every = (1 << (last + 1)) - 1
    _capset(every, every, every)
    for capability in range(last + 1):
        _check(_prctl(_PR_CAP_AMBIENT, 2, capability), "prctl AMBIENT_RAISE")


def drop_capabilities() -> None:
    """Give up every capability for good."""
    _check(_prctl(_PR_CAP_AMBIENT, 4), "prctl AMBIENT_CLEAR_ALL")
    _capset(0, 0, 0)


def install_filter(program: bytes) -> None:
    """Install a seccomp filter, given as packed `sock_filter` instructions."""
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    argument = ctypes.create_string_buffer(fprog, len(fprog))
    _check(_prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(argument)), "prctl SECCOMP")


def landlock_abi() -> int:
    """Return the version of Landlock's interface, 0 where the kernel has none or it is not enabled."""
    flags = ctypes.c_uint(1)
    return max(0, _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_CREATE), None, ctypes.c_size_t(0), flags))


class Ruleset:
    """A Landlock domain in the making: no file access, no TCP, no signal and no abstract socket across its border."""

    def __init__(self, abi: int) -> None:
        """Create an empty ruleset that handles all that interface version `abi` knows."""
        self._handled = _FS_BY_ABI[max(known for known in _FS_BY_ABI if known <= abi)]
        attributes = struct.pack("QQQ", self._handled, 0b11, 0b11)[: 8 if abi < 4 else 16 if abi < 6 else 24]
        size, flags = ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)
        fd = _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_CREATE), attributes, size, flags)
        self.fd = _check(fd, "landlock_create_ruleset")

    def allow(self, fd: int, access: int, *, is_file: bool = False) -> None:
        """Allow `access` to what the descriptor `fd` (of `O_PATH`) names and all beneath it."""
        rule = struct.pack("=Qi", access & self._handled & (_FS_FOR_FILES if is_file else -1), fd)
        kind, flags = ctypes.c_int(1), ctypes.c_uint(0)
        result = _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_ADD), ctypes.c_int(self.fd), kind, rule, flags)
        _check(result, "landlock_add_rule")

    def restrict_self(self) -> None:
        """Put this thread, and all it will start, into the domain."""
        result = _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_RESTRICT), ctypes.c_int(self.fd), ctypes.c_uint(0))
        _check(result, "landlock_restrict_self")
        os.close(self.fd)
