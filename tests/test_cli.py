"""The commands as a user types them, each in a process of its own."""

import contextlib
import errno
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mlstm_jax
from mlstm_jax import cli, config, options, terminal
from mlstm_jax.commands import parser
from mlstm_jax.corpora.sources import FORMATS
from mlstm_jax.errors import UserError

REPOSITORY = Path(__file__).parent.parent
COMMANDS = [
    *("prepare", "inspect", "plan", "train", "sweep"),
    *("evaluate", "generate", "heatmap", "report", "features", "transfer", "finetune"),
    *("classify", "view", "import", "export", "quickstart", "configs"),
]


@pytest.fixture
def call(tmp_path: Path, command_environment: dict[str, str]):
    def run(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        pipe = {"capture_output": True, "text": True, "timeout": 300}
        done = subprocess.run([*map(str, words)], cwd=tmp_path, env=command_environment, **pipe)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def test_help(capsys, monkeypatch, printed) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    overview = printed("--help")
    for command in COMMANDS:
        assert f"\n  {command} " in overview
        with contextlib.suppress(SystemExit):
            cli.main([command, "--help"])
        text = capsys.readouterr().out
        usage, _, _ = text.partition("\n\n")
        assert usage.startswith(f"usage: mlstm-jax {command} ")
        assert ("CONFIG" in usage) == (command in ("train", "quickstart", "plan"))
        assert max(map(len, text.splitlines())) <= 70
        assert not re.search(r"None|\[\{|STR|INT|FLOAT", text)
        assert "options options" not in text
        assert not re.search(r"--[a-z-]+, --no-", text)  # the parser's pairs of flags
        if command == "prepare":
            assert set(FORMATS) <= set(re.findall(r"\.[a-z]+", text))
        if command == "train":
            shown = set(re.findall(r"--[a-z][a-z.-]+", text))
            with pytest.raises(SystemExit):
                cli.main(["train", "--help-all"])
            text = capsys.readouterr().out
            assert shown - {"--help-all"} <= set(re.findall(r"--[a-z][a-z.-]+", text))
            assert "Paper: 256" in text
    with contextlib.suppress(SystemExit):
        cli.main(["help", "classify"])
    assert "usage: mlstm-jax classify " in capsys.readouterr().out
    assert printed("--version") == f"mlstm-jax {mlstm_jax.__version__}\n"


def test_help_imports() -> None:
    """Help needs neither NumPy nor JAX."""
    program = """
import contextlib, sys
from mlstm_jax import cli
for command in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        cli.main([command, "--help"])
    assert not {"numpy", "jax"} & set(sys.modules), command
"""
    subprocess.run([sys.executable, "-c", program, *COMMANDS], check=True, capture_output=True)


def test_quickstart(text_file, tmp_path, monkeypatch, capsys, printed, refused):
    monkeypatch.chdir(tmp_path)
    for unit in ("", "--document line --overwrite"):
        line = f"prepare {text_file} --out corpus --split 20,1,1 {unit}"
        found = printed(*line.split())
        assert "3,000 records" in found
        assert ("prose or code: --document paragraph or file" in found) == (not unit)
    options = "--model.hidden 32 --data.corpus corpus --data.batch 8 --data.window 16 --out run"
    steps = "--train.steps 40 --train.eval-every 20 --devices.virtual-cpu 4"
    monkeypatch.setattr(sys, "argv", ["train.py", *options.split(), *steps.split()])
    runpy.run_path(str(REPOSITORY / "train.py"), run_name="__main__")
    trained = capsys.readouterr()
    order = r"on 4 cpu device\(s\).*\ncompiling the training step\n.*step 20 "
    assert re.search(order, trained.err, re.DOTALL)
    assert "gzip -9" in trained.out
    evaluated = printed("evaluate", "run")
    bpc, scored = re.search(r"bpc (\S+) over ([\d,]+) bytes", evaluated).groups()
    manifest = json.loads(Path("corpus/manifest.json").read_text())
    assert int(scored.replace(",", "")) == manifest["splits"]["test"]["bytes"] - 16
    assert 1 < float(bpc) < 8
    with Path("corpus/train.bin").open("r+b") as file:
        file.write(b"X")
    assert "train.bin" in refused("inspect", "corpus", "--verify")


@pytest.fixture
def mistyped(corpus, tmp_path, monkeypatch, refused) -> Callable[[str], str]:
    """Run a line that must be refused, and that writes nothing; what it says."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "c").symlink_to(corpus)
    (tmp_path / "x.csv").write_text("text\na\n")
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        said = refused(*line.split())
        assert sorted(tmp_path.rglob("*")) == before
        return said

    return run


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("trian", "train or transfer"),
        ("predict sentiment x.csv", "classify"),
        ("models", "configs"),
        ("help clasify", "classify"),
        ("train smal_512", "small_512"),
        ("configs smal_512", "small_512"),
        ("sweep model --out x", "models"),
        ("evaluate reviews-102", "reviews-1024"),
        ("classify reviews-1024 reviews-1024 x.csv", "reviews-1024/sentiment"),
        ("train --model.units 4", "--model.hidden"),
        ("train --optimizer.lr=1", "--optimizer.learning-rate"),
        ("train --lr 1", "--optimizer.learning-rate"),
        ("train --steps 1", "--train.steps"),
        ("train --widnow 9", "--data.window"),
        ("train --dta.widnow 9", "--data.window"),
        ("train model:lstm --model.weight-nrom", "--model.weight-norm"),
        ("train model:lsm", "model:lstm"),
        ("finetune sentiment --steps 1", "--epochs"),
        ("generate sentiment --length 9", "--bytes"),
        ("generate sentiment -bytes 9", "--bytes"),
        ("generate sentiment --temp=1", "--temperature"),
        ("transfer sentiment --labels x", "--label-column"),
        ("classify sentiment x.csv --output y", "--out"),
        ("view sentiment a", "--classifier a"),
        ("transfer sentiment x.csv", "--train x.csv"),
        ("generate reviews-1024 this", "--prompt this"),
    ],
)
def test_near_misses(line, meant, mistyped) -> None:
    assert f"did you mean {meant}" in mistyped(line)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("prepare absent.jsonl --out x", "absent.jsonl: there is no such file"),
        ("prepare pydoc: --out x --split 1;2", "--split: '1;2'"),
        ("prepare pydoc: --out /proc/x", "because /proc cannot be written"),
        ("prepare x.csv --out y --document blank", "'blank' is not one of line, paragraph, file"),
        ("prepare x.csv --shuffle", "no option --shuffle. `mlstm-jax prepare --help`"),
        ("view --score", "no option --score"),
        ("train --train.step 1", "`mlstm-jax train --help-all`"),
        ("train /proc/cpuinfo", "/proc/cpuinfo is not a config"),
        ("train --data.corpus absent", "mlstm-jax prepare"),
        ("train --data.corpus x.csv", "x.csv is not a corpus"),
        ("train --data.corpus c --out x.csv/deep/run", "x.csv is a file"),
        ("train model:lstm model:mlstm", "model:lstm and model:mlstm: choose one model of"),
        ("train --model.kind gru", "there is no option --model.kind"),
        ("train --model.no-weight-norm", "--model.no-weight-norm"),
        ("train model:lstm --model.recurrent-gain 2", "--model.recurrent-gain"),
        ("train --optimizer.name", "--optimizer.name: expected one argument"),
        ("train --data.window many", "--data.window: 'many' is not a whole number"),
        ("train --train.steps=None", "--train.steps is None"),
        ("train --out loop/run --data.corpus c", "loop/run cannot"),
        ("train --data.corpus c --devices.count 99", "--devices.count is 99"),
        ("train --data.corpus c --devices.count 99", "with --devices.virtual-cpu."),
        ("plan --machine h200 --corpus-bytes 40GB", "--corpus-bytes: '40GB' is not a number"),
        ("heatmap sentiment --out h --scale 0", "above 0 and finite, or unset."),
        ("evaluate reviews-1024", "reviews-1024, a pretrained model, comes without a corpus"),
        ("evaluate runs/none", "pretrained model: reviews-1024"),
        ("evaluate x.csv", "x.csv is not a model"),
        ("export reviews-1024 --out x.csv/x.pyz", "another folder with --out"),
        ("generate reviews-1024 --prompt This film", "film belongs to no option"),
        ("prepare --train x.csv --out y --train=x.csv", "write all values after one --train."),
        ("generate sentiment --set-unit 1=3 --set-unit 5=0", "after one --set-unit."),
        ("generate sentiment --set-unit 1=3 1=-3", "gives unit 1 a second value"),
        ("features sentiment x.csv --out y --state c --state h", "after one --state."),
        ("classify sentiment y --classes a --classes b", "after one --classes."),
        ("train --train.steps 1 --train.steps=None", "--train.steps is None"),
        ("classify reviews-1024 a x.csv --out x.xlsx", "--out is 'x.xlsx'"),
        ("classify c x.csv", "`mlstm-jax classify c DIR INPUT`"),
        ("classify sentiment/sentiment x.csv", "`mlstm-jax classify sentiment DIR INPUT`"),
        ("classify sentiment I loved it", "echo TEXT | mlstm-jax classify sentiment -"),
        ("classify sentiment none.csv", "To pass a text itself, pipe it: echo"),
        ("classify sentiment --classes negative positive x.csv", "so write it last"),
    ],
)
def test_mistakes(line, named, mistyped) -> None:
    assert named in mistyped(line)


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"plan", "quickstart"}))
def test_words_of_options(command, capsys) -> None:
    """A mistyped option names the right one, and a wrong value has no annotation of Python."""
    names = {*parser.options(cli._function(command))} - {"config"}
    if command == "train":
        names |= {*config.flatten(config.Config())}
    for name in names:
        option = f"--{name.replace('_', '-')}"
        mistyped = f"{option[:-2]}{option[-1]}{option[-2]}"
        if len(name.rpartition(".")[2]) > 2 and mistyped != option:
            with pytest.raises(UserError, match=rf"{option}\b"):
                cli.parse(command, [mistyped])
        with contextlib.suppress(SystemExit, UserError):
            cli.parse(command, [option, "@", "@"])
    assert not re.search(r"[\[({]'|None|Union", capsys.readouterr().err)


def test_commands_of_one_process(refused) -> None:
    """A command leaves the next one's help, and the messages of other code, as they were."""
    train = cli._function("train")
    before = (train.__doc__, {**train.__annotations__})
    with contextlib.suppress(SystemExit):
        cli.main(["train", "--help"])
    assert "--train.steps is None" in refused("train", "--train.steps=None")
    assert (train.__doc__, train.__annotations__) == before
    assert terminal.message("`train.steps` is None") == "`train.steps` is None"


def test_former_name_of_a_field(monkeypatch, refused) -> None:
    monkeypatch.setitem(options.RENAMED, "train.rounds", "train.epochs")
    assert "did you mean --train.epochs?" in refused("train", "--train.rounds", 3)
    with pytest.raises(UserError, match=r"'rounds'; did you mean epochs\?"):
        mlstm_jax.vary(mlstm_jax.Config(), train__rounds=3)


def test_refused_before_jax(tmp_path, call) -> None:
    """What is wrong with files and options is said before the seconds that JAX and a model take."""
    (tmp_path / "run").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").touch()
    (tmp_path / "a.csv").write_text("text,label\nIt is good.,yes\nIt is bad.,no\n")
    (tmp_path / "b.csv").write_text("text,n;text;label\na,1;It is good.;yes\n")
    table = (
        ("transfer run --train b.csv --out x --label-column n", "seen are text, n;text;label."),
        ("transfer run --train b.csv --out x --label-column n --delimiter ;", "text,n, text, "),
        ("finetune run --train b.csv --out x --label-column n --delimiter ;", "text,n, text, "),
        ("classify sentiment b.csv --text-column n --delimiter ;", "text,n, text, label."),
        ("features sentiment b.csv --text-column n --out x.npz --delimiter ;", "text,n, text, "),
        ("evaluate absent", "absent does not exist"),
        ("transfer run --train a.csv --out mine", "mine exists; choose another folder"),
        (
            "transfer run --train a.csv --out mine --overwrite",
            "letter.txt in it is not from `transfer`",
        ),
        ("transfer run --train a.csv --out x --label-column stars", "has no label in 'stars'"),
        ("transfer sentiment --train a.csv --test a.csv --out x", "has only one text"),
        ("finetune run --train a.csv --out a.csv/x", "a.csv is a file"),
        ("finetune run --train a.csv --out x --label-column stars", "has no label in 'stars'"),
        ("evaluate run --corpus mine", "mine is not a corpus"),
        ("report run --corpus mine", "mine is not a corpus"),
        ("export run --out x.onnx", "a file that ends in .safetensors or .pyz"),
        ("export run --out x.pyz --classifier mine", "mine has no classifier.json"),
        ("export run --out x.pyz", "this model comes with no classifier"),
        ("export run --out x.safetensors --classifier mine", "can only be exported to .pyz"),
        ("view run --classifier mine", "mine has no classifier.json"),
        ("view run --port 99999", "--port is 99999"),
        ("heatmap run --out x.gif --text a --unit 1", "--out is 'x.gif'"),
        ("heatmap run --out x.html --text a --score mine", "mine has no classifier.json"),
        ("heatmap run --out x.html --text a", "pass either --unit or --score"),
        ("heatmap run --out x.html --text a --unit 1 --label b", "--label goes with --score"),
        ("classify sentiment a.csv --out x.csv --text-column b", "no column b"),
        ("features run absent.csv --out x.npz", "absent.csv"),
        ("generate run --stop abc", "--stop is 'abc'"),
    )
    program = """
import contextlib, sys
sys.modules["jax"] = None  # an import would fail
from mlstm_jax import cli
for line in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        cli.main(line.split())
"""
    said = call(sys.executable, "-c", program, *[line for line, _ in table]).stderr.splitlines()
    for (line, message), told in zip(table, said, strict=True):
        assert message in told, line


@pytest.mark.parametrize(
    "words",
    [
        "features run a.csv --out x.npz",
        "classify run classifier a.csv --out x.csv",
        "heatmap run --unit 1 --out x.html",
        "export run --out x.safetensors",
    ],
)
def test_overwrite(words, tmp_path, monkeypatch, capsys, refused):
    monkeypatch.chdir(tmp_path)
    file = Path(words.split()[-1])
    file.write_text("mine")
    Path("a.csv").write_text("text\na\n")
    Path("run").mkdir()
    said = refused(*words.split())
    assert f"{file} exists; choose another file, or replace it with --overwrite." in said
    with contextlib.suppress(SystemExit):  # it then fails for another reason
        cli.main([*words.split(), "--overwrite"])
    assert f"{file} exists" not in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("mlstm-jax --version >/dev/full", 1, "jax: standard output, a file or a connection: No"),
        ("PYTHONUNBUFFERED=1 mlstm-jax --help >/dev/full", 1, "jax: standard output, a file or"),
        ("mlstm-jax configs >&-", 1, "standard output, a file or a connection: Bad file"),
        ("mlstm-jax configs <&- 2>&- >/dev/null", 0, ""),
        ("mlstm-jax trian 2>/dev/full", 2, ""),
        ("PYTHONIOENCODING=ascii mlstm-jax configs puri_fig5 >/dev/null", 0, ""),  # has a β
        ("set -o pipefail; mlstm-jax --version | exec true", 0, ""),  # which reads nothing
    ],
)
def test_closed_and_full_outputs(line, code, told, call) -> None:
    said = call("bash", "-c", line, code=code).stderr
    assert told in said
    assert bool(told) == bool(said)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), "out of memory"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x.csv"), "x.csv: Too many open files."),
        (ImportError(f"x.so: {os.strerror(errno.EMFILE)}"), "Raise the limit on open files"),
        (RuntimeError("Symlink loop from 'a'"), "Choose another path"),
        (RuntimeError("a bug"), None),
    ],
)
def test_errors_of_the_system(error, told, monkeypatch, capsys):
    def run(words: list[str]) -> None:
        raise error

    monkeypatch.setattr(cli, "run", run)
    with pytest.raises(SystemExit if told else RuntimeError) as stop:
        cli.main(["classify"])
    if told:
        assert stop.value.code == 1
        said = capsys.readouterr().err
        assert said.startswith("mlstm-jax classify: ")
        assert told in said
