"""A process that has loaded torch, and forks ranks: three seconds of imports are spent once and not for every rank.

Each line of its input is a list of [task, file for what is told, file for errors]; it answers with their exit codes.
"""

import json
import os
import signal
import sys
import traceback

import torch._dynamo  # noqa: F401 - an optimizer's first step would load it, in every rank anew

from tests.torch import trainer

LIMIT_SECONDS = 100


def born(task: dict[str, object], told: str, errors: str) -> int:
    """A rank of its own process; its pid."""
    if pid := os.fork():
        return pid
    signal.alarm(LIMIT_SECONDS)  # a rank that hangs ends by itself
    for name, descriptor in ((told, 1), (errors, 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    code = 1
    try:
        code = trainer.run(task)
    except BaseException:  # noqa: BLE001 - what happened is in the file of errors
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)  # other ranks may be gone: nobody waits for a process group's farewell


for line in sys.stdin:
    pids = [born(*each) for each in json.loads(line)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.stdout.write(json.dumps(codes) + "\n")
    sys.stdout.flush()
