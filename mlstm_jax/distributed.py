"""The processes of one run, on JAX's own coordination.

Through JAX's store of keys and values (store.py) all compare what must be equal, and tell each
other why they stop. If the machine of process 0 is lost, and the store with it, JAX aborts the
others.

Nothing can interrupt an all-reduce that waits for a lost process, so a process that must stop says
why and ends with `os._exit`. If some do not start, JAX would abort the others and name nobody: so
each touches a file in the run folder until all are connected, and gives up before JAX does.
"""

import json
import math
import os
import re
import secrets
import signal
import socket
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from jax._src.distributed import global_state  # The store has no public name; Orbax does the same.

from mlstm_jax import digest, output, store, terminal
from mlstm_jax.config import Distributed
from mlstm_jax.errors import KnownError, UserError, explained
from mlstm_jax.launcher import (
    LONGEST,
    bind_address,
    choose_gpu,
    find_coordinator,
    process_info,
    require_free_port,
)

_PLACES = "mlstm_jax/process"  # the keys under which processes tell where they are
_SECONDS = 1.0  # between two looks at the other processes
_GRACE_SECONDS = 3.0  # for a process to stop by itself, for the same reason as another
_STALE_SECONDS = 5.0  # the file of a waiting process is touched every second
_SECONDS_TO_SEE = 10.0  # a new file: NFS shows it a little later to other machines
_RESTART = (
    "Only the steps since the last checkpoint are lost: start all processes again with the same "
    "command."
)


def _initialize(seconds: float, file: Path, **options: Any) -> None:
    """Call `jax.distributed.initialize` in a thread: where it waits, Python receives no signal."""
    done = Future[None]()

    def call() -> None:
        try:
            done.set_result(jax.distributed.initialize(**options))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    deadline = time.monotonic() + seconds
    left = seconds
    while left > 0 and not done.done():
        file.touch()
        wait([done], min(_SECONDS, left))
        left = deadline - time.monotonic()
    done.result(0)


class Cluster:
    """The processes of a run; the outermost context manager of a run.

    An error that leaves the context is told to the other processes and ends all of them. `index`:
    this process's, from 0. `names`: one for each process, for messages.
    """

    def __init__(self, options: Distributed, folder: Path) -> None:
        self.index, self.processes = process_info(options, os.environ)
        self.host = socket.gethostname()
        self._options = options
        self._folder = folder
        self.names = [f"process {index}" for index in range(self.processes)]
        self.names[self.index] += f" ({self.host})"
        self._store: Any = None
        self._end_store: Callable[[], None] = lambda: None
        self._gathered = 0
        self._leaving = threading.Event()

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which writes the files that only one process may write."""
        return self.index == 0

    def __enter__(self) -> "Cluster":
        if self.processes == 1:
            return self
        self._connect()
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            self._meet()
        except BaseException as error:
            self.stop(error)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.processes == 1:
            return
        if error is not None:
            self.stop(error)
            return
        self.barrier()
        self._leaving.set()
        if self.is_first:
            # JAX aborts whoever still has a connection to the store when it ends. This call returns
            # when the others have closed theirs, or are gone.
            self._store.get_live_nodes(list(range(self.processes)))
        jax.distributed.shutdown()
        self._end_store()

    def gather(self, value: Any) -> list[Any]:
        """The values, of JSON, of all processes, which must make their calls in one order."""
        if self.processes == 1:
            return [value]
        self._gathered += 1
        key = f"mlstm_jax/{self._gathered}"
        self._store.key_value_set(f"{key}/{self.index}", json.dumps(value))
        texts = [self._wait_for(f"{key}/{index}") for index in range(self.processes)]
        # All have begun this call, so all have read the values of the one before.
        self._store.key_value_delete(f"mlstm_jax/{self._gathered - 1}/{self.index}")
        return [json.loads(text) for text in texts]

    def barrier(self) -> None:
        """Wait until all processes have made this call."""
        self.gather(None)

    def _wait_for(self, key: str) -> str:
        """The value of a key, once it is set. Python receives signals every second."""
        while True:
            try:
                value: str = self._store.blocking_key_value_get(key, int(1000 * _SECONDS))
                return value
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise

    def require_equal(self, values: dict[str, Any], advice: str) -> None:
        """Raise UserError with `advice`, on all, unless all processes have the same values."""
        digests = self.gather(digest.of_json(values))
        differing = [index for index, found in enumerate(digests) if found != digests[0]]
        if not differing:
            return
        # Only two send their values: with many processes and a long config all would be too much.
        speaker = differing[0]
        everyone = self.gather(values if self.index in (0, speaker) else None)
        who = self.names[speaker]
        if len(differing) > 1:
            who += f" and others ({len(differing)} processes)"
        differences = []
        for name, first in everyone[0].items():
            other = everyone[speaker].get(name)
            if repr(other) != repr(first):
                differences.append(f"{name} is {other} on {who}, but {first} on process 0")
        raise UserError("; ".join(differences) + f". {advice}")

    def stop(self, error: BaseException) -> None:
        """Report why this process stops, tell the others, and end the process."""
        seconds = self._options.heartbeat_timeout_seconds
        if isinstance(error, jax.errors.JaxRuntimeError) and seconds < LONGEST:
            # If a lost process caused it, the watching thread names that process: the heartbeat is
            # missed, both sides look once more, and it waits for `_GRACE_SECONDS` itself.
            time.sleep(seconds + 3 * _GRACE_SECONDS)
        if isinstance(error, Exception) and not isinstance(error, KnownError):
            error = explained(error) or error
        if isinstance(error, KnownError):
            self._end(str(error), error.exit_code)
        elif isinstance(error, KeyboardInterrupt):
            number = signal.Signals(*error.args or [signal.SIGINT])
            self._end(f"interrupted by {number.name}", 128 + number)
        else:
            terminal.tell("".join(traceback.format_exception(error)))
            self._end(f"{type(error).__name__}: {error}", 1)

    def _end(self, text: str, code: int, *, tell: bool = True) -> None:
        self._leaving.set()
        self._say(text)
        if self._store is not None:
            if tell:
                reason = json.dumps([self.index, text, code])
                self._store.key_value_set(f"{store.STOP}/{self.index}", reason)
            if self.is_first:
                time.sleep(_GRACE_SECONDS + 2 * _SECONDS)  # The others must have read why.
        else:
            self._end_store()  # Otherwise it ends when it sees that this process has.
        terminal.leave()
        os._exit(code)

    def _say(self, text: str) -> None:
        who = f"process {self.index} of {self.processes} ({self.host})"
        terminal.tell(f"mlstm-jax train, {who}: {terminal.message(text)}")

    @property
    def _file(self) -> Path:
        """Says that this process has started; `run_folder.lock` ignores .partial files."""
        return self._folder / f"process-{self.index}.partial"

    def _connect(self) -> None:
        """Start JAX's coordination."""
        options = self._options
        coordinator = find_coordinator(options, self.index, self.processes)
        bind = bind_address(coordinator)
        if self.is_first:
            require_free_port(bind)
        else:
            self._take_place(coordinator)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(f"process {self.index} ({self.host}) of {self.processes}")
        self._say(f"waiting for all {self.processes} processes")
        seconds = min(options.timeout_seconds, LONGEST)
        # Whole ones: with 0 JAX would abort every process at once.
        heartbeat = math.ceil(min(options.heartbeat_timeout_seconds, LONGEST))
        jax.config.update("jax_enable_recoverability", True)  # A lost process must not abort this.
        jax.config.update("jax_enable_preemption_service", False)  # It would handle SIGTERM.
        if {"grpc_proxy", "https_proxy", "http_proxy"} & set(os.environ):
            os.environ.update(grpc_proxy="")  # A site's proxy does not know these machines.
        if self.is_first:
            reason = json.dumps([0, f"it was killed or has crashed. {_RESTART}", 1])
            self._end_store = store.start(coordinator, bind, self.processes, heartbeat, reason)
        try:
            _initialize(
                seconds,
                self._file,
                coordinator_address=coordinator,
                num_processes=self.processes,
                process_id=self.index,
                cluster_detection_method="deactivate" if options.coordinator else None,
                initialization_timeout=int(seconds) + 60,
                heartbeat_timeout_seconds=heartbeat,
                # JAX starts a store in process 0, too, which nobody uses.
                coordinator_bind_address="127.0.0.1:0",
            )
        except TimeoutError:
            self._give_up()
        finally:
            self._file.unlink(missing_ok=True)
        client: Any = global_state.client
        place = [self.processes, self.host, os.environ.get("CUDA_VISIBLE_DEVICES")]
        try:
            client.key_value_set(f"{_PLACES}/{self.index}", json.dumps(place))
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            self._end(self._taken(coordinator), UserError.exit_code)
        self._store = client

    def _take_place(self, coordinator: str) -> None:
        """Lock this process's place on this machine; UserError if another process has it.

        JAX would take a second process of one index for the first, started again, and end it.
        """
        name = re.sub(r"[^\w.]", "_", f"mlstm-jax-{os.getuid()}-{coordinator}-{self.index}.lock")
        try:
            place = Path(tempfile.gettempdir(), name).open("a")  # noqa: SIM115
            weakref.finalize(self, place.close)
            output.take_lock(place)
        except BlockingIOError:
            raise UserError(self._taken(coordinator)) from None
        except OSError:  # such as a file system without locks
            return

    def _taken(self, coordinator: str) -> str:
        return (
            f"a process {self.index} of the run at {coordinator} is there already. Wait until that "
            "run ends, or use another port with `distributed.coordinator`."
        )

    def _meet(self) -> None:
        """Learn the machines of all, choose the GPU of this process, and compare the run folder."""
        hosts = []
        visible = []
        for index in range(self.processes):
            number, host, devices = json.loads(self._wait_for(f"{_PLACES}/{index}"))
            if number != self.processes:
                raise UserError(
                    f"process {index} ({host}) was started with `distributed.processes` {number}, "
                    f"but process {self.index} ({self.host}) with {self.processes}; give all the "
                    "same number."
                )
            hosts.append(host)
            visible.append(devices)
        self.names = [f"process {index} ({host})" for index, host in enumerate(hosts)]
        if "JAX_LOCAL_DEVICE_IDS" not in os.environ:
            gpu = choose_gpu(self.index, hosts, visible)
            jax.config.update("jax_cuda_visible_devices", "all" if gpu is None else str(gpu))
        self._require_one_folder()

    def _require_one_folder(self) -> None:
        """Raise UserError, on all, unless all see a new file of process 0 in the run folder.

        With a copy on each machine no checkpoint would ever be complete.
        """
        name = self.gather(f"shared-{secrets.token_hex(8)}.partial")[0]
        file = self._folder / name
        if self.is_first:
            file.touch()
        self.barrier()
        deadline = time.monotonic() + _SECONDS_TO_SEE
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        seen = self.gather([file.exists(), str(self._folder.absolute())])
        if self.is_first:
            file.unlink()
        blind = [index for index, (sees, _) in enumerate(seen) if not sees]
        if blind:
            who = blind[0]
            raise UserError(
                f"{self.names[who]} does not see what process 0 writes to the run folder: "
                f"{seen[who][1]} there is another folder than {seen[0][1]} on {self.names[0]}. "
                "Set `out` to a folder on a file system that all processes share."
            )

    def _give_up(self) -> None:
        """Say which processes are missing, and end this one."""
        seconds = self._options.timeout_seconds
        self._file.touch()
        oldest = self._file.stat().st_mtime - _STALE_SECONDS  # Older ones are of an earlier start.
        waiting = {}
        for path in self._folder.glob("process-*.partial"):
            with suppress(OSError):  # It may be removed just now.
                if path.stat().st_mtime >= oldest:
                    waiting[path.stem.removeprefix("process-")] = path.read_text()
        missing = [index for index in map(str, range(self.processes)) if index not in waiting]
        where = find_coordinator(self._options, self.index, self.processes)
        self._end(
            f"{len(waiting)} of {self.processes} processes wait after {seconds:g} s. Missing: "
            f"{', '.join(missing) or 'none'}; waiting in {self._folder}: "
            f"{'; '.join(waiting.values())}. Start all with the same `distributed.processes` and "
            f"run folder; all must reach process 0 at {where}.",
            1,
        )

    def _watch(self) -> None:
        """End this process when another one stops or is lost."""
        code = 1
        text = None
        every = set(range(self.processes))
        lost: set[int] = set()
        while text is None and not self._leaving.wait(_SECONDS):
            try:
                stopped = self._store.key_value_dir_get(store.STOP)
                if not stopped:
                    lost = every.difference(self._store.get_live_nodes(list(every)))
            except jax.errors.JaxRuntimeError:  # The store has ended.
                text = f"{self.names[0]} is gone. {_RESTART}"
                break
            if stopped:
                who, reason, code = json.loads(stopped[0][1])
                text = f"{self.names[who]} stopped: {reason}"
            elif lost:
                seconds = self._options.heartbeat_timeout_seconds
                who = self.names[min(lost)]
                text = f"{who} is gone: it sent no heartbeat for {seconds:g} s. {_RESTART}"
        if text is not None and not self._leaving.wait(_GRACE_SECONDS):
            self._end(text, code or 1, tell=False)
