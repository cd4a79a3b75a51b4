"""Read documents of a TensorFlow Datasets data set, without TensorFlow.

The data set must have been prepared as ArrayRecord files: nothing is downloaded here. TFDS decides
where it is stored (`TFDS_DATA_DIR`, by default ~/tensorflow_datasets).
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from mlstm_jax.data.documents import Document, Recipe, first, rating_of
from mlstm_jax.data.records import no_column
from mlstm_jax.data.sources import TFDS, Source
from mlstm_jax.errors import UserError


def read_tfds(source: Source, recipe: Recipe) -> Iterator[Document | None]:
    """Yield the documents of `tfds:NAME[/CONFIG]:SPLIT`, and None for each record without text.

    Args:
        source: such as ``tfds:imdb_reviews:unsupervised`` or ``tfds:glue/sst2:train[:10%]``.
        recipe: the features of text and rating, by default the first of `TEXT_COLUMNS` and
            `RATING_COLUMNS` that exist.

    Raises:
        UserError: the data set does not exist, is not prepared as ArrayRecord files, or has no such
            split or feature.
    """
    name, _, split = source.name.removeprefix(TFDS).partition(":")
    if not name or not split:
        raise UserError(
            f"{source}: must be tfds:NAME[/CONFIG]:SPLIT, such as tfds:imdb_reviews:train"
        )
    examples, features = _open(source, name, split)
    text_columns = tuple(field for field in recipe.text_columns if field in features)
    if not text_columns:
        raise UserError(no_column(source, recipe.text_columns, list(features)))
    for example in examples:
        text = _decoded(first(example, text_columns))
        rating = first(example, recipe.rating_columns)
        number = rating.item() if hasattr(rating, "item") else rating
        record = {name: _decoded(example.get(name)) for name in recipe.label_columns}
        yield Document(text, rating_of(number), record or None) if isinstance(text, str) else None


def _decoded(value: object) -> object:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _open(source: Source, name: str, split: str) -> tuple[Any, Mapping[str, Any]]:
    try:
        import tensorflow_datasets as tfds
        from tensorflow_datasets.core.read_only_builder import builder_from_files
    except ImportError as error:
        raise UserError(
            f"{source}: needs TensorFlow Datasets: pip install 'mlstm-jax[tfds]' ({error})"
        ) from error
    make = (
        f"in Python, tensorflow_datasets.builder({name!r}, file_format='array_record')"
        ".download_and_prepare()"
    )
    folder = os.environ.get("TFDS_DATA_DIR") or tfds.core.constants.DATA_DIR
    # Opened from its files: the code that created them may need TensorFlow and is not run.
    try:
        builder = builder_from_files(name, data_dir=folder)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise UserError(
            f"{source}: no such data set is prepared in {folder} ({_line(error)}). Prepare it "
            f"once, which may download it: {make}; or set TFDS_DATA_DIR to its folder."
        ) from error
    try:
        return builder.as_data_source(split), builder.info.features
    except NotImplementedError as error:
        raise UserError(
            f"{source}: is prepared, but not as ArrayRecord files, the only ones readable without "
            f"TensorFlow. Remove {builder.data_dir}, and prepare it again: {make}"
        ) from error
    except (ValueError, KeyError) as error:
        known = ", ".join(builder.info.splits)
        raise UserError(
            f"{source}: has no split {split}; it has {known} ({_line(error)})"
        ) from error


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
