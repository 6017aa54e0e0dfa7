"""Becomes a pod's command, after a promise to the kernel: this process dies with the one that started it.

Run as a file with `python -I -S launch.py PARENT COMMAND…`: it imports nothing of ours, so a start costs
some 15 ms. The promise (PR_SET_PDEATHSIG) survives the exec but is not inherited by the command's own
children: those are in its process group and carry its mark, by which `sweep.py` finds them.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the promise was made
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main()
