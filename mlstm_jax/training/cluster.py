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

import json
import os
import socket
import sys
import threading
import time
import traceback
from types import TracebackType

from mlstm_jax import terminal
from mlstm_jax.config import Distributed
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.training.peer import Json, Peer, listen
from mlstm_jax.training.place import place

# After another process has told why it stops: time to come to the same error by oneself.
_GRACE_SECONDS = 5.0


class Lost(KnownError):
    """A process of the run is gone."""


class Cluster:
    """The processes of a run, this one among them; a context manager, the outermost of a run.

    One process alone is a cluster of one, with no connection. An error that leaves the context is
    told to the others, with the name of the process it came from, and ends all.

    Attributes:
        index: which process this is, from 0.
        processes: how many there are.
        host: this machine's name.
    """

    def __init__(self, distributed: Distributed) -> None:
        here = place(distributed, os.environ)
        self.index, self.processes = here.index, here.processes
        self.host = socket.gethostname()
        self._address = distributed.coordinator or ""
        self._timeout = distributed.timeout_seconds
        self._silence = distributed.heartbeat_timeout_seconds
        self._peers: dict[int, Peer] = {}
        self._changed = threading.Condition()
        self._values: dict[int, list[Json]] = {}  # by process: what it has said, not yet taken
        self._leaving = threading.Event()

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which writes what only one may write."""
        return self.index == 0

    @property
    def coordinator_host(self) -> str:
        """The host of process 0, as the config names it."""
        return self._address.rpartition(":")[0].strip("[]")

    def __enter__(self) -> "Cluster":
        if self.processes > 1:
            if self.is_first:
                self._listen()
            else:
                self._connect()
            for peer in self._peers.values():
                peer.connection.settimeout(self._silence)
                threading.Thread(target=self._read, args=(peer,), daemon=True).start()
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
            self._peers[0].send(value=value)
            return self._take(0)
        values = [value, *(self._take(index) for index in range(1, self.processes))]
        for peer in self._peers.values():
            peer.send(value=values)
        return values

    def require_equal(self, values: dict[str, Json], advice: str) -> None:
        """Raise UserError, on all processes, unless all have these named values.

        Args:
            advice: what to do about a difference.
        """
        # As the others see it: a tuple becomes a list on its way.
        everyone = self.gather([self.host, json.loads(json.dumps(values))])
        _, first = everyone[0]
        different = [
            f"{name} is {other.get(name)} on process {index} ({host}), but {first.get(name)} on "
            "process 0"
            for index, (host, other) in enumerate(everyone)
            for name in sorted({*first, *other})
            if other.get(name) != first.get(name)
        ]
        if different:
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
        for peer in self._peers.values():
            peer.send(stop=text, source=f"process {self.index} ({self.host})", code=code)
        if self.is_first:
            self._outlive_others()
        else:
            time.sleep(0.5)  # A connection that is closed at once may take its last words along.
        _exit(code)

    def _say(self, text: str) -> None:
        me = f", process {self.index} of {self.processes} ({self.host})"
        who = me if self.processes > 1 else ""
        terminal.show(f"mlstm-jax train{who}: {terminal.message(text)}", file=sys.stderr)

    # --- finding each other

    def _listen(self) -> None:
        """Wait for all others, as process 0."""
        deadline = time.monotonic() + self._timeout
        with listen(self._address, deadline) as server:
            told = time.monotonic()
            while len(self._peers) < self.processes - 1:
                left = deadline - time.monotonic()
                if left <= 0:
                    error = UserError(self._missing())
                    for peer in self._peers.values():
                        peer.send(stop=str(error), source="process 0", code=error.exit_code)
                    raise error
                if time.monotonic() - told > 10:
                    told = time.monotonic()
                    self._say(f"waits for {self._absent()}, {left:.0f} s more")
                server.settimeout(min(left, 1.0))
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                self._welcome(connection)
        for peer in self._peers.values():
            peer.send(value="all are here")

    def _welcome(self, connection: socket.socket) -> None:
        """Let a process in, unless it is none of this run."""
        connection.settimeout(5.0)
        peer = Peer(connection, -1, "")
        try:
            hello = peer.receive()
            peer.index, peer.host = int(hello["index"]), str(hello["host"])
            processes = int(hello["processes"])
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            peer.close()  # Not one of ours.
            return
        why = None
        if processes != self.processes:
            why = f"{peer} was told of {processes} processes, but process 0 of {self.processes}"
        elif not 0 < peer.index < self.processes or peer.index in self._peers:
            why = f"a second process on {peer.host} says that it is number {peer.index}"
        if why:
            error = UserError(f"{why}. Start every process with its own --distributed.index.")
            for told in [peer, *self._peers.values()]:
                told.send(stop=str(error), source="process 0", code=error.exit_code)
            raise error
        self._peers[peer.index] = peer

    def _absent(self) -> str:
        absent = [n for n in range(1, self.processes) if n not in self._peers]
        return f"process{'es' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"

    def _missing(self) -> str:
        here = {0: self.host} | {peer.index: peer.host for peer in self._peers.values()}
        present = ", ".join(f"{index} ({host})" for index, host in sorted(here.items()))
        return (
            f"{self._absent()} of {self.processes} did not come within {self._timeout:g} s; here "
            f"are {present}. Look into the logs of the missing; they must reach "
            f"{self._address}, and get the same --distributed.processes. More time: "
            "--distributed.timeout-seconds."
        )

    def _connect(self) -> None:
        """Find process 0, and wait until it has found all."""
        deadline = time.monotonic() + self._timeout
        host, _, port = self._address.rpartition(":")
        while True:
            try:
                connection = socket.create_connection((host.strip("[]"), int(port)), timeout=5.0)
                peer = Peer(connection, 0, host)
                peer.send(index=self.index, processes=self.processes, host=self.host)
                # Process 0 has as long to wait for the others.
                connection.settimeout(self._timeout + 30)
                first = peer.receive()
                break
            except (OSError, EOFError, ValueError) as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"process 0 did not answer at {self._address} within {self._timeout:g} s "
                        f"({error or type(error).__name__}). Is it started, is that its address, "
                        "and does a firewall let the port through?"
                    ) from error
                time.sleep(0.2)
        if "stop" in first:
            self._say(str(first["stop"]))
            _exit(int(first["code"]))
        self._peers[0] = peer

    # --- while it runs

    def _take(self, index: int) -> Json:
        """Wait for the next value of a process. The watchdog and the readers end a vain wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._values.get(index))
            return self._values[index].pop(0)

    def _beat(self) -> None:
        while True:
            for peer in self._peers.values():
                peer.send(alive=True)
            time.sleep(min(5.0, self._silence / 4))

    def _read(self, peer: Peer) -> None:
        """Read what a process says, until it stops or is lost."""
        try:
            while True:
                message = peer.receive()
                if "value" in message:
                    with self._changed:
                        self._values.setdefault(peer.index, []).append(message["value"])
                        self._changed.notify_all()
                elif "bye" in message:
                    return
                elif "stop" in message:
                    self._others_stop(message)
                    return
        except TimeoutError:
            self._lost(f"{peer} has given no sign of life for {self._silence:g} s")
        except (OSError, EOFError, ValueError):
            if not self._leaving.is_set():
                self._lost(f"{peer} is gone: it was killed, or its machine was")

    def _lost(self, what: str) -> None:
        text = (
            f"{what}. Nothing is lost but the steps since the last checkpoint: start all "
            "processes again with the same command."
        )
        self._end(text, source=f"process {self.index} ({self.host})", code=1, now=True)

    def _others_stop(self, message: dict[str, Json]) -> None:
        """End this process too, unless it comes to the same end by itself."""
        text = f"{message['source']} stopped: {message['stop']}"
        if self.is_first:
            for peer in self._peers.values():
                peer.send(**message)
        if message.get("now") or not self._leaving.wait(_GRACE_SECONDS):
            self._end(text, source=message["source"], code=message["code"] or 1, now=True)

    def _end(self, text: str, **message: Json) -> None:
        """End this process from another thread than the one that trains."""
        self._leaving.set()
        self._say(text)
        if self.is_first:
            for peer in self._peers.values():
                peer.send(stop=text, **message)
            self._outlive_others()
        _exit(message["code"])

    def _leave(self) -> None:
        """Leave when all have come to the end."""
        self.gather("done")
        self._leaving.set()
        for peer in self._peers.values():
            peer.send(bye=True)

    def _outlive_others(self) -> None:
        """Stay until the others are gone: JAX aborts them when process 0 goes first."""
        deadline = time.monotonic() + _GRACE_SECONDS + 5
        for peer in self._peers.values():
            try:
                while time.monotonic() < deadline:
                    peer.connection.settimeout(max(0.1, deadline - time.monotonic()))
                    if not peer.connection.recv(4096):
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
