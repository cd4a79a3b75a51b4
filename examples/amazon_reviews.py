"""Amazon reviews as a TFDS data set, from files that the user has downloaded.

TFDS's own `amazon_us_reviews` can no longer be downloaded. This one reads the files of McAuley's
group, in any of their three layouts, from a folder on disk. In the root of the repository::

    import tensorflow_datasets as tfds
    import examples.amazon_reviews

    config = tfds.download.DownloadConfig(manual_dir="folder/of/reviews")
    builder = tfds.builder("amazon_reviews", file_format="array_record")
    builder.download_and_prepare(download_config=config)

Then `mlstm-jax prepare tfds:amazon_reviews:train` reads it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mlstm_jax.corpora.documents import Recipe
from mlstm_jax.corpora.readers import read_source
from mlstm_jax.corpora.rejects import Reject
from mlstm_jax.corpora.sources import Source, find_sources
from mlstm_jax.errors import UserError


class AmazonReviews(tfds.core.GeneratorBasedBuilder):
    """One split, train: every review with text, in a shuffled order that TFDS chooses."""

    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Put reviews into manual_dir, as .json.gz or .jsonl.gz files (or .csv, or any of these "
        "uncompressed). Sources: 2014, https://jmcauley.ucsd.edu/data/amazon/; 2018, "
        "https://nijianmo.github.io/amazon/; 2023, https://amazon-reviews-2023.github.io/."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            description="Product reviews, each with its rating, 1 to 5, or NaN if it has none.",
            features=tfds.features.FeaturesDict(
                {"text": tfds.features.Text(), "rating": np.float32}
            ),
            supervised_keys=("text", "rating"),
            homepage="https://amazon-reviews-2023.github.io/",
            citation="McAuley et al. 2015; Ni et al. 2019; Hou et al. 2024.",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[str, Any]]]:
        files = find_sources([str(dl_manager.manual_dir)])
        return {"train": self._generate_examples(files)}

    def _generate_examples(self, files: Sequence[Source]) -> Iterator[tuple[str, Any]]:
        for number, file in enumerate(files):
            for index, document in enumerate(read_source(file, Recipe())):
                if isinstance(document, Reject):
                    if not document.is_note:
                        raise UserError(document.message)
                elif document and document.text.strip():
                    rating = math.nan if document.rating is None else document.rating
                    text = document.text.encode("utf-8", "replace")
                    yield f"{number}:{index}", {"text": text, "rating": np.float32(rating)}
