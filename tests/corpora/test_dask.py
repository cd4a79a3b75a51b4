"""Beam on a Dask cluster of two processes: DuckDB's corpus, also if one is killed."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.errors import UserError

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
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": path})


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
def test_a_cluster_makes_the_corpus_of_duckdb(tmp_path: Path, cluster, is_killed: bool) -> None:
    """Also if one of two workers is killed when the first part is written."""
    address, (victim, _) = cluster
    write_sources(tmp_path / "in")
    (tmp_path / "in/bad.jsonl").write_text('{"text": "good"}\nbad\n')
    prepare([str(tmp_path / "in")], tmp_path / "duckdb")
    program = (
        "import sys; from mlstm_jax.corpora.prepare import prepare\n"
        "prepare(sys.argv[1], sys.argv[2], engine='beam', beam_options=sys.argv[3])\n"
    )
    arguments = [str(tmp_path / "in"), str(tmp_path / "beam"), options(address)]
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, cwd=REPOSITORY) as process:
        while is_killed and process.poll() is None:
            if list(tmp_path.glob(".beam.partial-*/scratch/parts/*")):
                victim.send_signal(signal.SIGKILL)
                break
            time.sleep(0.02)
    assert process.returncode == 0
    assert is_killed == (victim.poll() is not None)
    assert contents(tmp_path / "beam") == contents(tmp_path / "duckdb")
    rejects = (tmp_path / "duckdb.rejects.jsonl").read_text()
    assert (tmp_path / "beam.rejects.jsonl").read_text() == rejects


def test_what_a_worker_cannot_read_or_write_is_named(tmp_path: Path, cluster, monkeypatch) -> None:
    address, _ = cluster
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        jsonl(tmp_path / f"in/{name}.jsonl", [{"text": f"{name} {n}"} for n in range(50)])
    (tmp_path / "in/damaged.txt.gz").write_bytes(b"\x1f\x8b\x08 not gzip")
    with pytest.raises(UserError, match=r"in/damaged\.txt\.gz, .*the gzip data is cut short"):
        prepare(tmp_path / "in", tmp_path / "out", engine="beam", beam_options=options(address))
    (tmp_path / "in/damaged.txt.gz").unlink()
    # The folder of the parts exists for this process only.
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    mkdir = Path.mkdir

    def unseen(path: Path, *rest: object, **how: object) -> None:
        mkdir(path, *rest, **how)
        if path.name == "parts":
            shutil.rmtree(path)

    monkeypatch.setattr(Path, "mkdir", unseen)
    with pytest.raises(UserError, match=r"worker on .* cannot write .*/parts/.* share"):
        prepare(tmp_path / "in", hidden / "out", engine="beam", beam_options=options(address))
    assert not list(hidden.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"in", "one", "two", "hidden"}
