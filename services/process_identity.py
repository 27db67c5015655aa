"""Who a process is, so that another can know for certain that it is dead.

What this module guarantees:

- `provably_dead` says True only of a process of this very boot, host and pid namespace that no longer exists, whose
  pid now belongs to a later one, or that is a zombie with no thread left. Whatever cannot be read means: not proven.
- It is a proof of death only. False means "alive, or on another host, or nobody can tell", never "alive".

Without Linux's /proc (macOS, or a /proc of another pid namespace) nothing is ever proven dead, which costs waiting and
no safety.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# Field numbers of proc(5) less the three that stand before and at the state, which comes first after the last ")".
_STATE, _THREADS, _STARTED = 0, 20 - 3, 22 - 3
UNKNOWN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process, never another: a pid comes again, but not in the same boot with the same start time."""

    host: str  # the host's name with the namespaces in which pid and start time mean something
    boot_id: str  # UNKNOWN where nothing can be proven
    pid: int
    started_at_ticks: int  # since boot; 0 where nothing can be proven


def identity() -> ProcessIdentity:
    """The current process."""
    pid = os.getpid()
    stat = _stat(pid) if _proc_is_ours() else None
    boot_id = _boot_id() if stat is not None else UNKNOWN
    started = int(stat[_STARTED]) if stat is not None else 0
    return ProcessIdentity(host=_host(), boot_id=boot_id, pid=pid, started_at_ticks=started)


def provably_dead(process: ProcessIdentity) -> bool:
    """Whether it is certain that this process runs no instruction any more."""
    if not _proc_is_ours():
        return False
    boot_id = _boot_id()
    if boot_id == UNKNOWN or (process.host, process.boot_id) != (_host(), boot_id) or process.pid <= 0:
        return False
    try:
        # Asked of the kernel, since a /proc mounted with hidepid has no folder for another user's living process.
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it exists
    stat = _stat(process.pid)
    if stat is None:
        return False
    if int(stat[_STARTED]) != process.started_at_ticks:
        return True
    # A process whose first thread has ended shows Z as well while its other threads still run.
    return stat[_STATE] in {"Z", "X"} and int(stat[_THREADS]) <= 1


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; a command's name may hold spaces and parentheses."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 1 :].split()
    return fields if len(fields) > _STARTED else None


def _proc_is_ours() -> bool:
    """Whether /proc is there and counts pids as this process does (a host's, mounted into a container, does not)."""
    try:
        return int((_PROC / "self").readlink().name) == os.getpid()
    except (OSError, ValueError):
        return False


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return UNKNOWN


def _host() -> str:
    """Two containers may share name and boot id: pids differ by pid namespace, start times by time namespace."""
    namespaces = []
    for kind in ("pid", "time"):
        try:
            namespaces.append(str((_PROC / "self/ns" / kind).readlink()))
        except OSError:  # no such namespace in this kernel, or no /proc
            namespaces.append(f"{kind}:none")
    return "/".join((socket.gethostname(), *namespaces))
