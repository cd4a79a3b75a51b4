"""The store of keys and values of a run's processes, in a process of its own.

Process 0 starts it. It outlives process 0 for as long as it takes to tell the others that it is
gone; where the store ends before them, JAX aborts them.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from jaxlib import _jax

STOP = "mlstm_jax/stop"  # the keys under which processes say why they stop
SECONDS_TO_END = 6.0  # for the others, after they know


def start(
    coordinator: str, bind: str, processes: int, heartbeat: int, reason: str
) -> Callable[[], None]:
    """Start the store; return what ends it at once.

    When this process ends, the store gives `reason` to the others, and ends.
    """
    words = [coordinator, bind, str(processes), str(heartbeat), reason]
    command = [sys.executable, "-m", __name__, *words]
    none = subprocess.DEVNULL  # Else it would keep the output of this process open.
    # The pipe closes when this process ends.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=none, stderr=none, env=environment
    )

    def end() -> None:
        process.kill()
        process.wait()

    return end


def _serve(coordinator: str, bind: str, processes: int, heartbeat: int, reason: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # of a whole group: process 0 ends it
    _service = _jax.get_distributed_runtime_service(
        bind, processes, heartbeat_timeout=heartbeat, recoverable=True
    )
    sys.stdin.buffer.read()
    client = _jax.get_distributed_runtime_client(
        coordinator, 0, init_timeout=int(SECONDS_TO_END), heartbeat_timeout=heartbeat
    )
    client.connect()
    client.key_value_set(f"{STOP}/0", reason)  # It fails, and ends this, if process 0 has said why.
    client.get_live_nodes(list(range(processes)))  # The others may wait in this call.
    time.sleep(SECONDS_TO_END)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
