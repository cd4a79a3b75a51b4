"""Beam on a Dask cluster of two processes: the local corpus, also if one is killed."""

import gzip
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.errors import KnownError
from tests.limits import limited

from .written import contents, jsonl

pytest.importorskip("apache_beam")
pytest.importorskip("distributed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Dask's own

REPOSITORY = Path(__file__).parents[2]
FILES = 16
DOCUMENTS_A_FILE = 1000  # 7 MB in all


def start(*words: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", *words]
    path = os.pathsep.join([str(REPOSITORY), *sys.path])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.DEVNULL)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address of a scheduler, and its two workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    words = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port))
    running = [start(*words, "--no-dashboard", folder=tmp_path)]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        words = ("distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny")
        running.append(start(*words, "--no-dashboard", folder=tmp_path / name))
    try:
        yield address, running[1:]
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()


def options(address: str) -> str:
    runner = "apache_beam.runners.dask.dask_runner.DaskRunner"
    return f"--runner={runner} --dask_client_address={address} --dask_npartitions={FILES}"


def write_sources(folder: Path) -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefé ", k=draw.randint(2, 9))) for _ in range(3000)]
    folder.mkdir()
    for number in range(FILES):
        records: list[dict[str, object]] = []
        for n in range(DOCUMENTS_A_FILE):
            text = " ".join(draw.choices(words, k=draw.randint(5, 150)))
            records.append({"text": text if n % 20 else f"copy {n}", "rating": draw.randint(1, 5)})
        jsonl(folder / f"{number:02}.jsonl", records)


@pytest.mark.parametrize("is_killed", [False, True])
def test_corpus_of_a_cluster(tmp_path: Path, cluster, is_killed: bool) -> None:
    """Also if one of two workers is killed when the first part is written."""
    address, (victim, _) = cluster
    write_sources(tmp_path / "in")
    (tmp_path / "in/bad.jsonl").write_text('{"text": "good"}\nbad\n')
    prepare([str(tmp_path / "in")], tmp_path / "local")
    program = (
        "import sys; from mlstm_jax.corpora.prepare import prepare\n"
        "prepare(sys.argv[1], sys.argv[2], engine='beam', beam_options=sys.argv[3])\n"
    )
    arguments = [str(tmp_path / "in"), str(tmp_path / "beam"), options(address)]
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, cwd=REPOSITORY) as process:
        while is_killed and process.poll() is None:
            if list(tmp_path.glob(".beam.partial-*/scratch/*/*")):
                victim.send_signal(signal.SIGKILL)
                break
            time.sleep(0.02)
    assert process.returncode == 0
    assert is_killed == (victim.poll() is not None)
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")
    rejects = (tmp_path / "local.rejects.jsonl").read_text()
    assert (tmp_path / "beam.rejects.jsonl").read_text() == rejects


def test_faults(tmp_path: Path, cluster, monkeypatch) -> None:
    """Each is named, nothing half written is left, and repaired it is the local corpus."""
    address, (one, two) = cluster
    how: dict[str, Any] = {"engine": "beam", "beam_options": options(address)}
    folder = tmp_path / "in"
    write_sources(folder)
    prepare([folder], tmp_path / "local")
    sources = sorted(folder.iterdir())
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    seen = []
    for source in sources:  # by a process in `here` or `one`, as each has its own by this name
        for place in (here, tmp_path / "one"):
            os.link(source, place / source.name)
        seen.append(f"/proc/self/cwd/{source.name}")
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(sources[0].read_bytes())[:-9000])
    empty = tmp_path / "empty.txt.gz"
    empty.write_bytes(b"\x1f\x8b\x08 not gzip")
    before = set(os.listdir(tmp_path))

    def require_named(names: Sequence[str | Path], message: str) -> None:
        with pytest.raises(KnownError, match=message):
            prepare(names, tmp_path / "out", **how)
        (tmp_path / "out.rejects.jsonl").unlink(missing_ok=True)
        assert set(os.listdir(tmp_path)) == before

    whole = sources[3].read_bytes()
    third = len(whole) // 3
    sources[3].unlink()  # the links stay whole
    sources[3].write_bytes(whole[:third] + b"\xff\n" * 1000 + whole[2 * third :])
    of_cut = r"1 gzip cut short or damaged: \S+cut\.jsonl\.gz, after record "
    require_named([folder, cut], rf"(?s){of_cut}.* not UTF-8: \S+in/03\.jsonl, line ")
    sources[3].write_bytes(whole)
    require_named([folder, empty], r"empty\.txt\.gz, .*the gzip data is cut short")
    require_named(seen, r"^the worker on .*: /proc/self/cwd/\d+\.jsonl is not there; all workers")
    # As on a full disk: of `out`, then of a worker.
    with limited(resource.RLIMIT_FSIZE, 1 << 20):
        require_named([folder], r"/out cannot be written: File too large")
    unlimited = resource.prlimit(two.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(two.pid, resource.RLIMIT_FSIZE, (10, unlimited[1]))
    require_named(
        [folder], r"the worker on .*/scratch/.* cannot be written: File too large.*-f\)\.$"
    )
    resource.prlimit(two.pid, resource.RLIMIT_FSIZE, unlimited)
    prepare([folder], tmp_path / "out", **how)
    assert contents(tmp_path / "out") == contents(tmp_path / "local")
    assert one.poll() is None
    assert two.poll() is None
