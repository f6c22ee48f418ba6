"""Runs a command that cannot outlive the supervisor: `tether.py SUPERVISOR_PID COMMAND ARGS…`.

It ties this process to the supervisor's life, then becomes the command. On Linux the kernel sends
SIGKILL when the supervisor's thread ends, however it ended; elsewhere a small watcher looks twice a
second. It runs as a script of its own, before exec, because code between fork and exec of a process
that has threads is not safe. Standard library only: it starts with `python -I -S`.
"""

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1


def tie_by_kernel() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def tie_by_watcher(supervisor: int) -> None:
    tied = os.getpid()
    if os.fork() != 0:
        return
    # A watcher that was adopted by another has nothing left to watch.
    while os.getppid() == tied:
        try:
            os.kill(supervisor, 0)
        except ProcessLookupError:
            os.kill(tied, signal.SIGKILL)
        time.sleep(0.5)
    os._exit(0)


def main() -> None:
    supervisor, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        tie_by_kernel()
    else:
        tie_by_watcher(supervisor)
    # It may have died before the tie was made: then nothing would ever end us.
    if os.getppid() == supervisor:
        os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
