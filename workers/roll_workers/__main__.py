"""`python -m roll_workers`: one pod of a job, as its environment describes it: one process, or one for each rank.

Exit codes: 0 finished or drained, 2 the user's error (its message is the last line of stderr), 3 refused
by the scheduler, anything else a failure that a restart may mend: 4 when something did not answer, with a
message like the user's.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from importlib import import_module
from types import FrameType

# gRPC's C core reports every lost connection on its own; the session does so once, in our format.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from roll_workers.errors import Drained, Refused, Unreachable, UserError
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.local_ranks import split
from roll_workers.runtime.source import unpack

log = logging.getLogger("roll_workers")

DISK_TROUBLE = (errno.ENOSPC, errno.EROFS, errno.EDQUOT)  # no restart mends these


def main() -> int:
    _log_as("")
    # Until a session takes the signal over there is nothing to hand back.
    signal.signal(signal.SIGTERM, _leave)
    try:
        config = WorkerConfig.from_env()
        if config.local_world > 1:
            ended = split(config)
            if ended is not None:
                return ended
            config = WorkerConfig.from_env()
            _log_as(f"rank {config.rank}: ")
        run(config)
    except UserError as error:
        return _tell(str(error))
    except Unreachable as error:
        _tell(str(error))
        return 4
    except OSError as error:
        if error.errno not in DISK_TROUBLE:
            raise
        return _tell(f"{error}. Nothing that was committed is lost; make room or make it writable")
    except Refused as error:
        log.info("refused by the scheduler: %s", error)
        return error.exit_code
    except Drained as error:
        log.info("%s", error)
    return 0


def _log_as(name: str) -> None:
    logging.basicConfig(
        level=os.environ.get("ROLL_LOG_LEVEL", "INFO"),
        format=f"%(asctime)s %(levelname)s {name}%(message)s",
        stream=sys.stderr,
        force=True,
    )


def _tell(message: str) -> int:
    """One line, the last one: it is what the operator shows of how a process ended."""
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    print(f"error: {line}", file=sys.stderr, flush=True)
    return 2


def run(config: WorkerConfig) -> None:
    """Runs the role's loop to its end."""
    from roll_workers.runtime.metrics import serve_metrics

    unpack(config.archive, config.source)
    job = config.load_job()
    serve_metrics(config)
    log.info("%s starts as %s, attempt %d", config.pod, config.role, config.attempt)
    # Imported only now: no role pays for another one's dependencies.
    loop = import_module(f"roll_workers.{config.role}.loop")
    if config.role == "trainer":
        loop.main(config, job)
    else:
        import uvloop

        uvloop.run(loop.main(config, job))
    log.info("%s is done", config.pod)


def _leave(number: int, frame: FrameType | None) -> None:
    log.info("stopped by %s before any work", signal.Signals(number).name)
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
