"""The processes of one run: how they find each other, agree, and learn that one is gone.

Process 0 listens at the coordinator's address; each other process holds one connection to it. Over
it go lines of JSON: who is there, values that all must know, a sign of life every few seconds, and
at last why a process stops. The kernel closes a killed process's connection at once, so the others
know within a moment, and by name.

It stands beside JAX's own coordination, which starts after it: that one aborts without a name when
a process is missing, and takes its heartbeat timeout to find a dead one, while the living wait
inside an all-reduce that nothing can interrupt. Whoever must stop therefore says why, tells the
others, and leaves by `os._exit`.
"""

import hashlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from types import TracebackType

from mlstm_jax import terminal
from mlstm_jax.address import is_loopback, parse
from mlstm_jax.config import Distributed
from mlstm_jax.distributed import listener, rendezvous
from mlstm_jax.distributed.connection import Connection, Json, Stop
from mlstm_jax.distributed.process_info import process_info
from mlstm_jax.distributed.rendezvous import Greeting, Lobby
from mlstm_jax.errors import KnownError, UserError

# After another process has told why it stops: time to come to the same error by oneself.
_GRACE_SECONDS = 5.0
# Of a difference: in so many ways it is told, if each process differs in its own.
_KINDS = 5


class Cluster:
    """The processes of a run, this one among them; a context manager, the outermost of a run.

    One process alone is a cluster of one, with no connection. An error that leaves the context is
    told to the others, with the name of the process it came from, and ends all.

    Attributes:
        index: which process this is, from 0.
        processes: how many there are.
        host: this machine's name.
        first_host: the numeric address at which this process has reached process 0, or process 0
            was reached; "" in a cluster of one.
    """

    def __init__(self, distributed: Distributed) -> None:
        this = process_info(distributed, os.environ)
        self.index, self.processes = this.index, this.processes
        self.host = socket.gethostname()
        self.first_host = ""
        self._coordinator = distributed.coordinator
        self._timeout = distributed.timeout_seconds
        self._silence = distributed.heartbeat_timeout_seconds
        self._connections: dict[int, Connection] = {}
        self._changed = threading.Condition()
        self._values: dict[int, list[Json]] = {}  # by process: what it has said, not yet taken
        self._leaving = threading.Event()

    def __str__(self) -> str:
        return f"process {self.index} ({self.host})"

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which writes what only one may write."""
        return self.index == 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process runs on another machine than process 0."""
        if self.is_first or is_loopback(self.first_host):
            return False
        own = self._connections[0].sock.getsockname()
        return listener.numeric_host(own) != self.first_host

    def __enter__(self) -> "Cluster":
        if self.processes > 1:
            self._meet()
            for connection in self._connections.values():
                connection.sock.settimeout(self._silence)
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.processes == 1:
            return
        if error is None:
            self._leave()
            return
        if not isinstance(error, KnownError | KeyboardInterrupt):
            # It may be what JAX makes of a lost process; whoever reads that connection knows more.
            time.sleep(2)
        self.stop(error)

    def gather(self, value: Json) -> list[Json]:
        """Return the value of every process, in their order; all must call it, in one order."""
        if self.processes == 1:
            return [value]
        if not self.is_first:
            self._connections[0].send(value=value)
            return self._take(0)
        values = [value, *(self._take(index) for index in range(1, self.processes))]
        for connection in self._connections.values():
            connection.send(value=values)
        return values

    def require_equal(self, values: dict[str, Json], advice: str) -> None:
        """Raise UserError, on all processes, unless all have these named values.

        Args:
            advice: what to do about a difference.
        """
        text = json.dumps(values, sort_keys=True)
        digests = self.gather(hashlib.sha256(text.encode()).hexdigest())
        # The first process of each kind speaks for it: the values of all are too many.
        speakers = {str(digest): index for index, digest in reversed(list(enumerate(digests)))}
        if len(speakers) == 1:
            return
        chosen = sorted(speakers.values())[: _KINDS + 1]
        # As the others see it: a tuple becomes a list on its way.
        everyone = self.gather([self.host, json.loads(text)] if self.index in chosen else None)
        _, first = everyone[0]
        different: list[str] = []
        for index in chosen[1:]:
            host, other = everyone[index]
            more = digests.count(digests[index]) - 1
            who = f"process {index} ({host})" + (f" and {more} more" if more else "")
            different += [
                f"{name} is {other.get(name)} on {who}, but {first.get(name)} on process 0"
                for name in sorted({*first, *other})
                if other.get(name) != first.get(name)
            ]
        if different:
            shown = [digests[index] for index in chosen]
            others = sum(digest not in shown for digest in digests)
            if others:
                different.append(f"{others} more processes differ in other ways")
            raise UserError("; ".join(different) + f". {advice}")

    def stop(self, error: BaseException) -> None:
        """Say why this process stops, tell the others, and end it."""
        self._leaving.set()
        if isinstance(error, KnownError):
            code, text = error.exit_code, str(error)
        elif isinstance(error, KeyboardInterrupt):
            code, text = 130, "interrupted"
        else:
            code, text = 1, f"{type(error).__name__}: {error}"
            traceback.print_exception(error)
        self._say(text)
        stop = Stop(text, str(self), code)
        for connection in self._connections.values():
            connection.send(**stop.message())
        if self.is_first:
            self._outlive_others()
        else:
            time.sleep(0.5)  # A connection that is closed at once may take its last words along.
        _exit(code)

    def _say(self, text: str) -> None:
        me = f", process {self.index} of {self.processes} ({self.host})"
        who = me if self.processes > 1 else ""
        terminal.show(f"mlstm-jax train{who}: {terminal.message(text)}", file=sys.stderr)

    def _meet(self) -> None:
        """Find the others; see rendezvous.py."""
        assert self._coordinator
        where = parse(self._coordinator)
        if self.is_first:
            lobby = Lobby(where, self.host, self.processes, self._timeout, self._say)
            self._connections = lobby.wait()
            self.first_host = rendezvous.reached_at(self._connections.values())
        else:
            greeting = Greeting(self.index, self.processes, self.host)
            self._connections[0], self.first_host = rendezvous.find_first(
                where, greeting, self._timeout
            )

    # --- while it runs

    def _take(self, index: int) -> Json:
        """Wait for the next value of a process. The watchdog and the readers end a vain wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._values.get(index))
            return self._values[index].pop(0)

    def _put(self, index: int, value: Json) -> None:
        """Keep what a process has said for `_take`; ValueError where it cannot be that."""
        if not self.is_first and (not isinstance(value, list) or len(value) != self.processes):
            raise ValueError("not a value of every process")
        with self._changed:
            # Whoever sends one waits for what all have sent.
            if self._values.get(index):
                raise ValueError("a second value")
            self._values.setdefault(index, []).append(value)
            self._changed.notify_all()

    def _beat(self) -> None:
        while True:
            for connection in self._connections.values():
                connection.send(alive=True)
            time.sleep(min(5.0, self._silence / 4))

    def _read(self, connection: Connection) -> None:
        """Read what a process says, until it stops or is lost."""
        try:
            while True:
                message = connection.receive(self._silence)
                if "value" in message:
                    self._put(connection.index, message["value"])
                elif "bye" in message:
                    return
                elif "alive" not in message:
                    self._others_stop(Stop.read(message))
                    return
        except TimeoutError:
            self._lost(f"{connection} has given no sign of life for {self._silence:g} s")
        except (OSError, EOFError):
            self._lost(f"{connection} is gone: it was killed, or its machine was")
        except ValueError as error:
            self._lost(f"{connection} sent something that is not a message of this run ({error})")

    def _lost(self, what: str) -> None:
        if self._leaving.is_set():
            return
        text = (
            f"{what}. Nothing is lost but the steps since the last checkpoint: start all "
            "processes again with the same command."
        )
        self._end(Stop(text, str(self), 1, now=True))

    def _others_stop(self, stop: Stop) -> None:
        """End this process too, unless it comes to the same end by itself."""
        if self.is_first:
            for connection in self._connections.values():
                connection.send(**stop.message())
        if stop.now or not self._leaving.wait(_GRACE_SECONDS):
            text = f"{stop.source} stopped: {stop.text}"
            self._end(Stop(text, stop.source, stop.code or 1, now=True))

    def _end(self, stop: Stop) -> None:
        """End this process from another thread than the one that trains."""
        self._leaving.set()
        self._say(stop.text)
        if self.is_first:
            for connection in self._connections.values():
                connection.send(**stop.message())
            self._outlive_others()
        _exit(stop.code)

    def _leave(self) -> None:
        """Leave when all have come to the end."""
        self.gather("done")
        self._leaving.set()
        for connection in self._connections.values():
            connection.send(bye=True)

    def _outlive_others(self) -> None:
        """Stay until the others are gone: JAX aborts them when process 0 goes first."""
        deadline = time.monotonic() + _GRACE_SECONDS + 5
        for connection in self._connections.values():
            try:
                while time.monotonic() < deadline:
                    connection.sock.settimeout(max(0.1, deadline - time.monotonic()))
                    if not connection.sock.recv(4096):
                        break
            except OSError:
                continue


def _exit(code: int) -> None:
    """End the process at once; a collective that waits for a lost process cannot be unwound."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # The progress line may have hidden the cursor.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
