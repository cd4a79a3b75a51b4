"""The processes of one run: how they find each other, agree, and detect that one is gone.

Process 0 listens at the coordinator's address; each other process has one connection to it. The
connection carries lines of JSON: greetings, values that all must know, a heartbeat every few
seconds, and finally the reason why a process stops. The kernel closes a killed process's connection
at once, so the others notice immediately and can name the process.

JAX's own coordination starts later and is independent. It aborts without a name if a process is
missing, and detects a dead process only after its heartbeat timeout, while the others wait in an
all-reduce that nothing can interrupt. A process that must stop therefore reports the reason, sends
it to the others, and ends with `os._exit`.
"""

import json
import os
import socket
import threading
import time
import traceback

import jax

from mlstm_jax import digest, terminal
from mlstm_jax.config import Distributed
from mlstm_jax.config.sections import Address, is_loopback, parse_address
from mlstm_jax.distributed import rendezvous
from mlstm_jax.distributed.connection import (
    Connection,
    Json,
    Stop,
    free_port,
    loopback_of,
    numeric_host,
)
from mlstm_jax.distributed.process_info import local_device_ids, process_info
from mlstm_jax.distributed.rendezvous import Greeting, RendezvousServer
from mlstm_jax.errors import KnownError, UserError

# After another process has sent why it stops: time for this process to raise the same error itself.
_GRACE_SECONDS = 5.0
# Maximum number of groups of differing processes that a message describes.
_KINDS = 5


class Cluster:
    """The processes of a run, including this one; the outermost context manager of a run.

    A single process is a cluster of one, without connections. An error that leaves the context is
    sent to the other processes, with the name of its process, and ends all of them.

    Attributes:
        index: index of this process, from 0.
        processes: number of processes.
        host: this machine's name.
        first_host: the numeric address at which this process reached process 0, or, in process 0,
            at which it was reached; "" in a cluster of one.
    """

    def __init__(self, distributed: Distributed) -> None:
        self.index, self.processes = process_info(distributed, os.environ)
        self.host = socket.gethostname()
        self.first_host = ""
        self._coordinator = distributed.coordinator
        self._timeout = distributed.timeout_seconds
        self._silence = distributed.heartbeat_timeout_seconds
        self._connections: dict[int, Connection] = {}
        self._changed = threading.Condition()
        self._values: dict[int, list[Json]] = {}  # by process: values received, not yet taken
        self._leaving = threading.Event()

    def __str__(self) -> str:
        return f"process {self.index} ({self.host})"

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which writes the files that only one process may write."""
        return self.index == 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process runs on another machine than process 0."""
        if self.is_first or is_loopback(self.first_host):
            return False
        return numeric_host(self._connections[0].sock.getsockname()) != self.first_host

    def __enter__(self) -> "Cluster":
        if self.processes > 1:
            self._meet()
            for connection in self._connections.values():
                connection.sock.settimeout(self._silence)
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.processes == 1:
            return
        if error is None:
            self._leave()
            return
        if not isinstance(error, KnownError | KeyboardInterrupt):
            # JAX may have raised it because a process is lost; the reader of that connection then
            # reports the cause.
            time.sleep(2)
        self.stop(error)

    def gather(self, value: Json) -> list[Json]:
        """Return the values of all processes by index; all must make their calls in one order."""
        if self.processes == 1:
            return [value]
        if not self.is_first:
            self._connections[0].send(value=value)
            return self._take(0)
        values = [value, *(self._take(index) for index in range(1, self.processes))]
        self._send_all(value=values)
        return values

    def require_equal(self, values: dict[str, Json], advice: str) -> None:
        """Raise UserError, on all processes, unless all have the same named values.

        Args:
            values: of this process, by name.
            advice: what to do if they differ.
        """
        digests = self.gather(digest.of_json(values))
        # Only the first process with each digest sends its values: those of all would be too many.
        speakers = {str(value): index for index, value in reversed(list(enumerate(digests)))}
        if len(speakers) == 1:
            return
        chosen = sorted(speakers.values())[: _KINDS + 1]
        # Compare with the values after JSON, which turns a tuple into a list.
        everyone = self.gather(
            [self.host, json.loads(json.dumps(values))] if self.index in chosen else None
        )
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
            others = sum(value not in shown for value in digests)
            if others:
                different.append(f"{others} more processes differ in other ways")
            raise UserError("; ".join(different) + f". {advice}")

    def start_jax(self) -> None:
        """Start JAX's own coordination of several processes."""
        if self.processes == 1:
            return
        # At the host of process 0, with a free port.
        here = self.first_host
        host, port = self.gather([here, free_port(here)] if self.is_first else None)[0]
        # The zone of a link-local address differs from machine to machine.
        zoned = "%" in host and "%" in here
        where = str(Address(here if zoned else host, port))
        # JAX's own handler of SIGTERM would replace ours.
        jax.config.update("jax_enable_preemption_service", False)
        if {"grpc_proxy", "https_proxy", "http_proxy"} & set(os.environ):
            os.environ.update(grpc_proxy="")  # Process 0 was reached without a proxy.
        jax.distributed.initialize(
            where,
            self.processes,
            self.index,
            local_device_ids=local_device_ids(os.environ),
            cluster_detection_method="deactivate",
            # Longer than our own timeout, whose message names the lost process.
            heartbeat_timeout_seconds=600,
            coordinator_bind_address=where,
        )

    def require_outward_names(self) -> None:
        """Raise UserError, on all processes, if the CPUs of several machines cannot be connected.

        Gloo connects them by the address to which each machine resolves its own name.
        """
        everyone = self.gather([self.is_elsewhere, self.host, loopback_of(self.host)])
        hidden = [
            f"{host}, the machine of process {index}, resolves its own name to {loopback}"
            for index, (_, host, loopback) in enumerate(everyone)
            if loopback
        ]
        if hidden and any(elsewhere for elsewhere, *_ in everyone):
            raise UserError(
                f"{'; '.join(hidden[:5])}. JAX connects the CPUs of several machines by these "
                "names: in each machine's /etc/hosts, map its own name to the address at which the "
                "others reach it."
            )

    def stop(self, error: BaseException) -> None:
        """Report why this process stops, send it to the others, and end the process."""
        if isinstance(error, KnownError):
            code, text = error.exit_code, str(error)
        elif isinstance(error, KeyboardInterrupt):
            code, text = 130, "interrupted"
        else:
            code, text = 1, f"{type(error).__name__}: {error}"
            terminal.tell("".join(traceback.format_exception(error)))
        self._end(Stop(text, str(self), code), tell=True)

    def _say(self, text: str) -> None:
        me = f", process {self.index} of {self.processes} ({self.host})"
        who = me if self.processes > 1 else ""
        terminal.tell(f"mlstm-jax train{who}: {terminal.message(text)}")

    def _meet(self) -> None:
        assert self._coordinator
        where = parse_address(self._coordinator)
        if self.is_first:
            server = RendezvousServer(where, self.host, self.processes, self._timeout, self._say)
            self._connections = server.wait()
            self.first_host = rendezvous.reached_at(self._connections.values())
        else:
            greeting = Greeting(self.index, self.processes, self.host)
            self._connections[0], self.first_host = rendezvous.find_first(
                where, greeting, self._timeout
            )

    # --- while it runs

    def _send_all(self, **message: Json) -> None:
        for connection in self._connections.values():
            connection.send(**message)

    def _take(self, index: int) -> Json:
        """Wait for the next value of a process; the watchdog and the readers end a useless wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._values.get(index))
            return self._values[index].pop(0)

    def _put(self, index: int, value: Json) -> None:
        """Store a value for `_take`; raise ValueError if it is not a valid value."""
        if not self.is_first and (not isinstance(value, list) or len(value) != self.processes):
            raise ValueError("not a value of every process")
        with self._changed:
            # A process that has sent a value waits for the values of all.
            if self._values.get(index):
                raise ValueError("a second value")
            self._values.setdefault(index, []).append(value)
            self._changed.notify_all()

    def _beat(self) -> None:
        while not self._leaving.wait(min(5.0, self._silence / 4)):
            self._send_all(alive=True)

    def _read(self, connection: Connection) -> None:
        """Read the messages of a process until it stops or is lost."""
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
            self._lost(f"{connection} has sent no heartbeat for {self._silence:g} s")
        except (OSError, EOFError):
            self._lost(f"{connection} is gone: it was killed or its machine went down")
        except ValueError as error:
            self._lost(f"{connection} sent something that is not a message of this run ({error})")

    def _lost(self, what: str) -> None:
        if self._leaving.is_set():
            return
        text = (
            f"{what}. Only the steps since the last checkpoint are lost: start all processes "
            "again with the same command."
        )
        self._end(Stop(text, str(self), 1, now=True))

    def _others_stop(self, stop: Stop) -> None:
        """End this process, too, unless it ends by itself within the grace period."""
        if self.is_first:
            self._send_all(**stop.message())
        if stop.now or not self._leaving.wait(_GRACE_SECONDS):
            text = f"{stop.source} stopped: {stop.text}"
            self._end(Stop(text, stop.source, stop.code or 1, now=True))

    def _end(self, stop: Stop, *, tell: bool = False) -> None:
        """End this process, from any thread; process 0 always tells the others why."""
        self._leaving.set()
        self._say(stop.text)
        if self.is_first or tell:
            self._send_all(**stop.message())
        if self.is_first:
            self._outlive_others()
        elif tell:
            time.sleep(0.5)  # If a connection is closed at once, its last message may be lost.
        _exit(stop.code)

    def _leave(self) -> None:
        """Leave after all processes have reached the end."""
        self.gather("done")
        self._leaving.set()
        self._send_all(bye=True)

    def _outlive_others(self) -> None:
        """Wait until the others are gone: JAX aborts them if process 0 ends first."""
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
    """End the process at once; a collective that waits for a lost process cannot be interrupted."""
    terminal.leave()
    os._exit(code)
