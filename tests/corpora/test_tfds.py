"""TFDS data sets, without TensorFlow: ours of Amazon's reviews, and theirs by their names."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.errors import UserError
from mlstm_jax.transfer.labels import read_labelled

from .test_sources import texts, write_layouts

tfds = pytest.importorskip("tensorflow_datasets")

# TFDS's, of its protobuf.
pytestmark = pytest.mark.filterwarnings("ignore:label.. is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    return tmp_path / "tfds"


class Glue(tfds.core.GeneratorBasedBuilder):
    """Made-up sentences with the name, the config and the features of GLUE's SST-2."""

    VERSION = tfds.core.Version("2.0.0")
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="sst2"),)

    def _info(self) -> Any:
        features = {"sentence": tfds.features.Text(), "label": np.int64, "idx": np.int32}
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Any:
        for n in range(20):
            yield n, {"sentence": f"sentence {n} é", "label": n % 2, "idx": n}


def test_reviews_downloaded_by_hand(tmp_path, folder, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    import examples.amazon_reviews  # noqa: F401

    write_layouts(tmp_path / "in")
    absent = r"{}:train cannot be read from .*/tfds \(.*download_and_prepare\(\)"
    for name, message in (
        ("amazon_reviews:train", absent.format("amazon_reviews")),
        ("imdb_reviews:train", absent.format("imdb_reviews")),
        ("glue/sst2:train", absent.format("glue/sst2")),
        ("imdb_reviews", "tfds:imdb_reviews is not of the form tfds:NAME"),
    ):
        with pytest.raises(UserError, match=message):
            prepare([f"tfds:{name}"], tmp_path / "out", split=(1, 0, 0))
    assert not (tmp_path / "out").exists()
    builder = tfds.builder("amazon_reviews", data_dir=folder, file_format="array_record")
    config = tfds.download.DownloadConfig(manual_dir=tmp_path / "in")
    builder.download_and_prepare(download_config=config)
    manifest = prepare(["tfds:amazon_reviews:train"], tmp_path / "out", split=(1, 0, 0)).manifest
    assert manifest.sources[0].name == "tfds:amazon_reviews:train"
    prepare([str(tmp_path / "in")], tmp_path / "files", split=(1, 0, 0))
    assert texts(tmp_path / "out") == texts(tmp_path / "files")
    assert texts(tmp_path / "out") == {"a": 5.0, "b": 1.0, "c": 4.0, "d": 2.0}
    # Nothing of it needs TensorFlow.
    assert "tensorflow" not in sys.modules
    with pytest.raises(UserError, match=r"test.*train"):
        prepare(["tfds:amazon_reviews:test"], tmp_path / "more")


def test_features_by_name(tmp_path: Path, folder: Path) -> None:
    Glue(config="sst2", data_dir=folder, file_format="array_record").download_and_prepare()
    source = "tfds:glue/sst2:train"
    prepare([source], tmp_path / "out", split=(1, 0, 0), rating_column="label")
    labels = {f"sentence {n} é": n % 2 for n in range(20)}
    assert texts(tmp_path / "out") == labels
    half = prepare(["tfds:glue/sst2:train[:50%]"], tmp_path / "half", split=(1, 0, 0)).manifest
    assert half.records == 10
    found = read_labelled(source, None)
    assert dict(zip(found.texts, map(int, found.labels), strict=True)) == labels
    with pytest.raises(UserError, match=r"no column body; its columns are .*sentence"):
        prepare([source], tmp_path / "more", text_column="body")
