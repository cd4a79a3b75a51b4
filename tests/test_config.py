"""Configs: checks, files, the command line, and what a resume may change."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from mlstm_jax import config as configs
from mlstm_jax import digest, fields
from mlstm_jax.commands import training
from mlstm_jax.config import Config, Data, Distributed, Model, Optimizer, Precision, Train, vary
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.training import sweep
from tests.training.runs import write_config

FOLDER = Path(__file__).parent.parent / "configs"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_config_files(path: Path) -> None:
    config = configs.load_file(path)
    assert config.out == f"runs/{path.stem}"


def test_run_of_the_paper() -> None:
    config = resolve(configs.load_file(FOLDER / "amazon_4096.py"), Hardware(8))
    assert (config.model.hidden, config.data.batch, config.data.window) == (4096, 2048, 256)
    assert (config.optimizer.learning_rate, config.optimizer.decay_steps) == (3e-3, None)
    assert (config.train.steps, config.train.epochs) == (100_000, 3)


def parse(words: list[str]) -> dict[str, Any]:
    return training.parse_with_config(training.train, words, "train").keywords


def test_usual_config() -> None:
    """A command without a config trains the quickstart; `Config()` is of its size, in its place."""
    quickstart = configs.load_file("quickstart")
    assert parse([])["config"] == quickstart
    places = [(one.out, one.data.corpus, one.model.hidden) for one in (Config(), quickstart)]
    assert places[0] == places[1]


VARIED = {"data__batch": 64, "optimizer__clip_norm": None}
TWO_HEADS = configs.Transformer(hidden=512, heads=2)
OF_LSTM = {"model": configs.LSTM(hidden=512, weight_norm=True)}
OF_GRU = {"model": configs.GRU(hidden=512, weight_norm=True), "train__steps": 3}


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("small_512 --data.batch 64 --optimizer.clip-norm None --resume", VARIED),
        (f"{FOLDER}/small_512.py --data.batch 64 --optimizer.clip-norm=None", VARIED),
        # A word chooses the kind of model, and the sizes stay.
        ("small_512 model:gru --model.weight-norm --train.steps 3", OF_GRU),
        ("model:gru small_512 --train.steps 3 --model.weight-norm", OF_GRU),
        ("small_512 --train.steps 3 --model.weight-norm model:gru", OF_GRU),
        ("small_512 model:lstm --model.weight-norm", OF_LSTM),
        ("model:transformer small_512 --model.heads 2", {"model": TWO_HEADS}),
        ("small_512 model:bert --model.heads 2", {"model": configs.BERT(hidden=512, heads=2)}),
        ("small_512 --model.recurrent-gain 2", {"model__recurrent_gain": 2}),
        ("small_512 model:mlstm --model.recurrent-gain 2", {"model__recurrent_gain": 2}),
    ],
)
def test_options_of_a_line(line: str, changes: dict) -> None:
    given = parse(line.split())
    config = given["config"]
    assert config == vary(configs.load_file("small_512"), **changes)
    assert (given["resume"], given["reset_carry"]) == ("--resume" in line, False)
    text = configs.to_json(config)
    assert configs.from_json(text, Path("x")) == config
    assert ("kind" in json.loads(text)["model"]) == (type(config.model) is not Model)


def test_kind_of_a_config() -> None:
    own = parse(["quickstart", "model:mlstm"])["config"]
    assert own == configs.load_file("quickstart")  # with what it sets beside the sizes
    model = parse(["amazon_4096", "model:transformer"])["config"].model
    assert model == configs.Transformer(hidden=4096)


ADDRESSES = [
    *("", ":", "node1", "node1:", ":8476", "::1:8476", "[::1]", "[node1]:8476", "node 1:8476"),
    *("node1:0", "node1:65536", "node1:-1", "node1:1e3", "node1:²", "http://node1:8476", "[::1]:0"),
]


@pytest.mark.parametrize(
    ("section", "values", "field", "rule"),
    [
        (Model, {"hidden": 0}, "model.hidden", "1 to 1,048,576"),
        (Model, {"embedding_std": float("inf")}, "model.embedding_std", "finite"),
        (Model, {"classes": 3, "rating_head": True}, "model.classes", ""),
        (Train, {"seed": 2**32}, "train.seed", "0 to 4,294,967,295"),
        (Train, {"steps": None, "epochs": None}, "train.steps", "epochs"),
        (Train, {"epochs": -1}, "train.epochs", "above 0"),
        (Train, {"steps": 30_000_000_000}, "train.steps", "1 to"),
        (Train, {"steps": 1.5}, "train.steps", "a whole number"),
        (Train, {"label_weight": float("inf")}, "train.label_weight", "finite"),
        (Data, {"window": -1}, "data.window", "at least 1"),
        (Data, {"batch": "3"}, "data.batch", "a whole number"),
        (Data, {"batch": True}, "data.batch", "a whole number"),
        (Data, {"shuffle_shards": 1}, "data.shuffle_shards", "true or false"),
        (Precision, {"initial_loss_scale": 0.5}, "initial_loss_scale", "between 1.0 and"),
        (Optimizer, {"learning_rate": 0}, "optimizer.learning_rate", "above 0 and finite"),
        (Optimizer, {"learning_rate": "1e-3"}, "optimizer.learning_rate", "a number"),
        (Optimizer, {"b2": 1.0}, "optimizer.b2", "at least 0 and below 1"),
        (Optimizer, {"clip_norm": float("nan")}, "optimizer.clip_norm", "above 0"),
        (Optimizer, {"decay_steps": 2**31}, "optimizer.decay_steps", "1 to"),
        (Optimizer, {"name": "adm"}, "optimizer.name", "one of adam, adamw, lamb"),
        (Optimizer, {"weight_decay": 0.1}, "optimizer.weight_decay", "0.0 with adam; it is"),
        (Optimizer, {"muon_steps": 3}, "optimizer.muon_steps", "5 with adam; it is a field of"),
        *(
            (Optimizer, {name: float("inf")}, f"optimizer.{name}", "")
            for name, kind in get_type_hints(Optimizer).items()
            if float in (kind, *get_args(kind))
        ),
        (Train, {"start_optimizer": True}, "train.start_optimizer", "false without `train.start"),
        *((Distributed, {"coordinator": x}, "distributed.coordinator", "HOST") for x in ADDRESSES),
        (Config, {"data": "corpora/mine"}, "data", "a Data"),
    ],
)
def test_bad_values(section: Any, values: dict, field: str, rule: str) -> None:
    with pytest.raises(UserError, match=rf"{re.escape(field)} .*{re.escape(rule)}"):
        section(**values)


@pytest.mark.parametrize("text", ["node1:8476", "mlstm-0.mlstm:1", "10.0.0.1:65535", "[::1]:8476"])
def test_addresses(text: str) -> None:
    assert Distributed(coordinator=text).coordinator == text


def test_batch_per_device(tmp_path: Path) -> None:
    file = write_config(Config(data=Data(batch_per_device=4)), tmp_path / "x.py")
    for words in (["--data.batch", "6"], ["--data.batch=6"]):
        config = parse([str(file), *words])["config"]
        assert resolve(config, Hardware(2)).data == Data(batch=6)
    varied = configs.vary(configs.load_file(file), data__batch=6)
    assert resolve(varied, Hardware(2)).data == Data(batch=6)
    kept = configs.vary(configs.load_file(file), data__window=6)
    assert resolve(kept, Hardware(2)).data == Data(batch=8, window=6)
    both = ["--data.batch", "6", "--data.batch-per-device", "6"]
    with pytest.raises(UserError, match="not both"):
        parse(both)


def test_differences_that_forbid_a_resume() -> None:
    old = Config()
    new = Config(
        out="elsewhere",
        model=Model(hidden=8),
        data=Data(corpus="moved", batch=64),
        optimizer=Optimizer(learning_rate=1.0),
        distributed=Distributed(coordinator="node1:8476", processes=4, index=2),
    )
    found = configs.differences(old, new)
    assert found.forbidden == ["model.hidden: 256 → 8"]
    assert found.allowed == ["data.batch: 128 → 64", "optimizer.learning_rate: 0.0005 → 1.0"]
    # The tree of moments is another one.
    muon = vary(old, optimizer__name="muon")
    decoder = vary(muon, optimizer__muon_decoder=True)
    forbidden = ["optimizer.muon_decoder: False → True"]
    assert configs.differences(muon, decoder) == (forbidden, [])
    # A run keeps its kind of model.
    other = vary(old, model=configs.LSTM(hidden=8), data__batch=64)
    kind = ["model: model:mlstm → model:lstm"]
    batch = ["data.batch: 128 → 64"]
    assert configs.differences(old, other) == (kind, batch)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model": {"depth": 3}}', "there is no field 'model.depth'"),
        ('{"model": {"kind": "rnn"}}', "model.kind is 'rnn', but it must be one of"),
        ('{"model": {"kind": []}}', "model.kind is [], but it must be one of"),
        ('{"model": {"kind": "lstm", "recurrent_gain": 1}}', "no field 'model.recurrent_gain'"),
        ('{"sections": {}}', "there is no field 'sections'"),
        ('{"model": {"hidden": "12"}}', "model.hidden is '12', but it must be a whole number"),
        ('{"model": {"hidden": 0}}', "model.hidden is 0, but it must be 1 to"),
        ('{"data": {"corpus": null}}', "data.corpus is None, but it must be a string"),
        ('{"optimizer": {"name": "sgd"}}', "optimizer.name is 'sgd', but it must be one of adam"),
        ('{"optimizer": {"learning_rate": NaN}}', "optimizer.learning_rate is nan, but it must"),
        ('{"train": {"epochs": 1' + "0" * 400 + "}}", "train.epochs is 1000"),
        ('{"model": []}', "model is [], but it must be an object"),
        ("[]", "it is not an object with named fields"),
        ("not json", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"out": ' + "9" * 5000 + "}", "not JSON"),
        (b"\xff{}", "not JSON"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_json(text: str | bytes, message: str, tmp_path: Path) -> None:
    with contextlib.suppress(fields.InvalidField):  # what is JSON gets a checksum
        text = json.dumps(digest.sealed(fields.parse(text))) if text[:1] == "{" else text
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    # What has its checksum is neither damaged nor edited.
    advice = "was written by another version" if digest.FIELD in str(text) else "restore the file"
    with pytest.raises(UserError, match=rf"config\.json .*{re.escape(message)}") as refused:
        configs.load_json(tmp_path / "config.json")
    assert advice in str(refused.value)


def test_round_trip_of_json() -> None:
    """Numbers of NumPy become Python's."""
    config = Config(
        model=Model(hidden=7, rating_head=True, recurrent_gain=2),
        data=Data(batch=np.int64(3)),
        optimizer=Optimizer(clip_norm=None, learning_rate=np.float32(0.5), schedule="cosine"),
        train=Train(divergence_bpc=float("inf"), epochs=2, deterministic=np.True_),
    )
    assert configs.from_json(configs.to_json(config), Path("x")) == config
    assert (type(config.data.batch), type(config.optimizer.learning_rate)) == (int, float)
    assert configs.from_json(digest.to_json({}), Path("x")) == Config()


FP8 = {"precision__recurrent": "fp8"}
EMULATED = {"precision__recurrent": "fp8_emulated"}
OTHERS = [kind for name, kind in sorted(Architecture.kinds.items()) if name != "mlstm"]


@pytest.mark.parametrize(
    ("allowed", "changes", "field"),
    [
        ({"train__recompute_every": 16}, {"model": configs.BERT()}, "train.recompute_every"),
        ({"precision__cell": "compute"}, {"model": configs.GRU()}, "precision.cell"),
        ({"model": configs.BERT()}, {"train__objective": "next-byte"}, "train.objective"),
        ({"model": configs.BERT(positions=256)}, {"data__window": 257}, "data.window"),
        *(
            ({"devices__kernels": "pallas"}, {"model": kind()}, "devices.kernels")
            for kind in OTHERS
        ),
        *((FP8, {"model": kind()}, "precision.recurrent") for kind in OTHERS),
        (FP8, {"model__layers": 2}, "precision.recurrent"),
        (FP8, {"precision__compute": "fp16"}, "precision.compute"),
        (FP8, {"devices__kernels": "xla"}, "devices.kernels"),
        (EMULATED, {"devices__kernels": "pallas"}, "devices.kernels"),
        (EMULATED, {"train__recompute_every": 16}, "train.recompute_every"),
    ],
)
def test_fields_that_exclude_each_other(allowed, changes, field) -> None:
    config = vary(Config(), **allowed)
    resolve(config, Hardware(1))
    with pytest.raises(UserError, match=f"^{re.escape(field)} is "):
        resolve(vary(config, **changes), Hardware(1))


HEAD = "from mlstm_jax.config import *\n\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("config = Config(model=Model(hiden=3))", "line 3: TypeError: MLSTM.* 'hiden'"),
        ("config = vary(Config(), train__step=3)", "line 3: Train has no field 'step'; did you"),
        ("config = vary(Config(), zebra=1)", "Config has no field 'zebra'; its fields are out,"),
        ("import absent_module", r"line 3: ModuleNotFoundError: No module named 'absent_module'"),
        ("class A:\n    def __init__(self): 0\nconfig = A(x=1)", r"line 5: TypeError: A\.__init__"),
        ("config = (", r"SyntaxError: '\(' was never closed .*line 3"),
        ("config = 1 / 0", r"line 3: ZeroDivisionError"),
        ("batch = 3", r"mine\.py sets no `(config = Config|runs)"),
        ("config = Config(model=Model(hidden=0))", r"line 3: model.hidden is 0, but it must be"),
    ],
)
@pytest.mark.parametrize("load", [configs.load_file, sweep.load_sweep])
def test_mistakes_in_a_file(load, code: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + code + "\n")
    with pytest.raises(UserError, match=message):
        load(path)


def test_text_as_config(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("text\nfine\n")
    with pytest.raises(UserError, match=r"reviews.csv is not a config.*data.corpus"):
        configs.load_file(tmp_path / "reviews.csv")
