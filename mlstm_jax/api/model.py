"""A trained model in Python: all of reading.py, and evaluation, transfer and fine-tuning."""

import bz2
import gzip
import lzma
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from mlstm_jax import environment, output, shipped
from mlstm_jax import run as runs
from mlstm_jax.api.arguments import Examples, as_labelled, public
from mlstm_jax.api.reading import ReadingModel
from mlstm_jax.data.corpus import SplitName
from mlstm_jax.errors import UserError
from mlstm_jax.interop import weights
from mlstm_jax.terminal import ProgressLine
from mlstm_jax.training.evaluation import Evaluator, Score, corpus_of
from mlstm_jax.transfer import onnx_file
from mlstm_jax.transfer.finetune import Finetuned, FinetuneOptions
from mlstm_jax.transfer.finetune import finetune as run_finetune
from mlstm_jax.transfer.reader import FeatureState
from mlstm_jax.transfer.transfer import Transferred
from mlstm_jax.transfer.transfer import transfer as run_transfer

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip -9": lambda data: gzip.compress(data, 9, mtime=0),
    "bz2 -9": lambda data: bz2.compress(data, 9),
    "xz -6": lzma.compress,
}
# Enough to compare compressors; xz takes about a second for it.
_MOST_BYTES = 8_000_000


def compressed_bpc(data: bytes) -> dict[str, float]:
    """Return the bits per byte that each compressor of the standard library needs for `data`."""
    return {name: 8 * len(compress(data)) / len(data) for name, compress in COMPRESSORS.items()}


class TrainedModel(ReadingModel):
    """A trained or imported model; `load` and `train` return one.

    It is immutable. It keeps the programs that it compiles, so a second call compiles nothing. A
    copy is the model itself, and it is pickled as the path it was loaded from.

    Attributes:
        path: what it was loaded from.
        checkpoint, compute: the arguments of `load`.
        step: of the checkpoint; 0 for imported weights.
        config: of the run that trained it.
    """

    def __reduce__(self) -> tuple[Any, tuple[str, str, str]]:
        # Store the step: if training continues, the best checkpoint may change.
        step = self.checkpoint if self._run.imported else str(self.step)
        # A model of the package is found by its name in any environment.
        path = self.path.name if shipped.is_ours(self.path) else self.path.resolve()
        return load, (str(path), step, self.compute)

    @public
    def export(
        self,
        out: str | Path | None = None,
        dtype: Literal["float32", "float16", "int8"] = "float32",
        *,
        format: Literal["safetensors", "onnx"] | None = None,
        classifier: Transferred | str | Path | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write the model as one .safetensors or .onnx file that other programs can read.

        Args:
            out: file to write; unset: the run's name, in the current folder.
            dtype: float32; float16, not of onnx, for half the size, with parameters rounded to 11
                bits; or int8, only of onnx, for matrices of 7 bits and a scale for each column.
            format: unset: the suffix of `out`, or safetensors. onnx, of an mLSTM, needs the extra
                `onnx`; the file is compared with JAX before it is written.
            classifier: of onnx: what `transfer` returned, or its folder, for the output
                `probabilities`.
            overwrite: replace an existing file.

        Raises:
            ValueError: the path has another suffix, or exists; the format does not have the dtype
                or a classifier, or the model; or a parameter is too large for float16.
            OSError: it cannot be written.
        """
        ending = format or (Path(out).suffix.removeprefix(".") if out else "safetensors")
        path = Path(out or f"{self.path.resolve().name}.{ending}")
        if path.suffix != f".{ending}":
            raise UserError(
                f"out {path} does not end in .{ending}, its `format`; change one of them."
            )
        output.require_file(path, overwrite=overwrite)
        if ending != "onnx":
            if dtype == "int8" or classifier is not None:
                given = "dtype int8" if dtype == "int8" else "classifier"
                raise UserError(f"{given} is for `format=onnx`, not for {ending}; change one.")
            weights.save(path, runs.as_weights(self._run), dtype)
        elif dtype == "float16":
            raise UserError("dtype float16 is not for `format=onnx`; use float32 or int8.")
        else:
            chosen = None if classifier is None else self._classifier(classifier)
            source = runs.as_weights(self._run).source
            onnx_file.save(path, self._run, source, dtype, chosen)
        return path

    @public
    def evaluate(
        self,
        split: SplitName = "test",
        *,
        corpus: str | Path | None = None,
        show_progress: bool = False,
    ) -> Score:
        """Return the bits per character of a split with a carried state (Puri et al. 2018, VI).

        Args:
            split: which part of the corpus.
            corpus: corpus folder; unset: the one that the model was trained on.
            show_progress: on standard error.

        Raises:
            ValueError: the split or corpus does not exist, or the corpus has changed.
        """
        scored, _ = corpus_of(self._run, corpus, split)
        devices = self._devices
        model = self._run.batch_model or self._run.model
        evaluator = self._kept(
            (scored.identity, split),
            lambda: Evaluator(
                model, scored.split(split), self.config.data.window, devices, scored.stop
            ),
        )
        size, steps = evaluator.stream.scored, evaluator.stream.steps
        with ProgressLine("evaluate", size, of_bytes=True, quiet=not show_progress) as progress:
            return evaluator(
                devices.replicate(self._run.params),
                lambda step: progress.update(size * step // steps),
            )

    @public
    def report(self, corpus: str | Path | None = None) -> str:
        """Compare the bits per character of the validation split with gzip's; show a sample.

        A model that does not predict the next byte neither compresses nor writes.

        Args:
            corpus: corpus folder; unset: the one that the model was trained on.
        """
        opened, is_own = corpus_of(self._run, corpus, "valid")
        split, score = opened.split("valid"), self.evaluate("valid", corpus=corpus)
        whose = (
            ", not used for training" if is_own else f" of {opened.path}, not the training corpus"
        )
        place = f"The run is in {self.path}: config.json, metrics.jsonl, checkpoints/" + (
            ", tensorboard/." if (self.path / "tensorboard").is_dir() else "."
        )
        objective = self.config.model.objective
        if objective != "next-byte":
            of = f"{objective.replace('-', ' ')} of {len(split.bytes):,} validation bytes{whose}"
            return f"Bits per byte over the {of}: {score.bpc:.3f} (step {self.step:,})\n\n{place}"
        text = split.bytes[:_MOST_BYTES].tobytes()
        others = compressed_bpc(text)
        note = f" (compressors: the first {len(text):,})" if len(text) < score.bytes_scored else ""
        best_other = min(others, key=lambda name: others[name])
        sample = self.generate()
        lines = [
            f"Bits per character over {len(split.bytes):,} validation bytes{whose}{note}:",
            f"  {'this model':<12}{score.bpc:8.3f}   step {self.step:,}",
            *(f"  {name:<12}{bpc:8.3f}" for name, bpc in others.items()),
            "",
            "A sample, drawn at temperature 0.7:",
            *textwrap.wrap(sample, 96, initial_indent="  ", subsequent_indent="  "),
            "",
            place,
        ]
        if score.bpc >= others[best_other]:
            lines.append(f"It does not beat {best_other} yet: train longer, or on more text.")
        return "\n".join(lines)

    @public
    def transfer(
        self,
        train: Examples,
        test: Examples | None = None,
        valid: Examples | None = None,
        *,
        out: str | Path | None = None,
        state: FeatureState | None = None,
        all_layers: bool = False,
        words: bool = False,
        label_column: str | None = None,
        text_column: str | None = None,
        show_progress: bool = False,
    ) -> Transferred:
        """Fit logistic regression to the frozen features of texts, and measure it.

        This follows the protocol of Puri et al. 2018, section VI, with an L1 penalty and TF-IDF as
        a baseline. For your own pipeline use `Features`. With fewer labels than features the
        penalty is L2. In that case, with a model of the package and a state that includes mean_h,
        its own classifier is a prior: it is kept as it is, or its log-odds are one more feature,
        unless held-out texts are clearly better without it. So a few labels hardly lower the
        accuracy that it has without any.

        Args:
            train: texts with labels: a .csv, .tsv, .json, .jsonl or .parquet file, or in Python a
                tuple of texts and labels.
            test: as `train`, to measure the accuracy on; unset: a fifth of each class of `train`,
                chosen by a digest of the texts, so that it is always the same.
            valid: as `train`, to choose C on, the inverse strength of the penalty; unset:
                cross-validation.
            out: folder for the features, the classifier, report.md, report.json and pictures.
            state: see `encode`.
            all_layers: see `encode`.
            words: the classifier is both that of the features and that of TF-IDF: its probabilities
                are the means of theirs, or those of one of them if it alone is clearly better on
                held-out texts. It has no score after each character.
            label_column: field or column of the label in files, a number or a string; unset: label.
            text_column: field or column of the text in files; unset: text, reviewText, sentence,
                ...
            show_progress: on standard error.

        Returns:
            The classifier and the results; `.result.test` is the test accuracy, a fraction, and
            `.result.together["test"]` that with `words`, given or not.

        Raises:
            ValueError: a file cannot be read, the classes do not match, or `out` holds something
                else; or the texts have no words for `words`.
        """
        (only,) = self.transfer_each(
            None if state is None else (state,),
            train=train,
            test=test,
            valid=valid,
            out=out,
            label_column=label_column,
            text_column=text_column,
            all_layers=all_layers,
            words=words,
            show_progress=show_progress,
        ).values()
        return only

    def transfer_each(
        self,
        states: Sequence[FeatureState] | None,
        *,
        train: Examples,
        test: Examples | None,
        valid: Examples | None,
        out: str | Path | None,
        label_column: str | None,
        text_column: str | None,
        **how: bool,
    ) -> dict[FeatureState, Transferred]:
        """Return the classifier of each of several states; see `transfer`."""
        given = {"train": train, "test": test, "valid": valid}
        texts = as_labelled(given, text_column, label_column)
        folder, place = None if out is None else Path(out), shipped.classifier(self.path)
        own = self._classifier(place) if place else None
        return run_transfer(
            self._run, texts, folder, states=states, text_column=text_column, own=own, **how
        )

    @public
    def finetune(
        self,
        train: Examples,
        valid: Examples | None = None,
        test: Examples | None = None,
        *,
        out: str | Path,
        options: FinetuneOptions | None = None,
        label_column: str | None = None,
        text_column: str | None = None,
        checkpoint: Literal["best", "latest"] = "best",
        owns_process: bool = False,
        show_progress: bool = False,
    ) -> Finetuned:
        """Fine-tune all parameters to predict labels, along with the language model loss.

        Args:
            train: see `transfer`.
            valid: as `train`; the loss of its labels, after each epoch, chooses the checkpoint,
                and its accuracy is reported. Unset: a fifth of `train`, as for `transfer`.
            test: as `train`, to measure on.
            out: folder for corpus/, run/, classifier/ and report.json; the same call resumes in it.
            options: how to fine-tune; unset: three epochs.
            label_column: see `transfer`.
            text_column: see `transfer`.
            checkpoint: of the finished run, for the classifier: best (by the loss of the
                validation labels), or latest.
            owns_process: see `mlstm_jax.train`.
            show_progress: on standard error.

        Raises:
            ValueError: a file cannot be read, the classes do not match, or `out` holds something
                else.
        """
        given = {"train": train, "valid": valid, "test": test}
        texts = as_labelled(given, text_column, label_column)
        return run_finetune(
            self._run,
            texts,
            Path(out),
            options or FinetuneOptions(),
            checkpoint=checkpoint,
            text_column=text_column,
            owns_process=owns_process,
            show_progress=show_progress,
        )


@public
def load(
    path: str | Path, checkpoint: str | int = "best", compute: runs.ReadingCompute = "auto"
) -> TrainedModel:
    """Load a trained model.

    Compiled programs, and whether the CPU multiplies bf16 faster, are kept for the next process, as
    the command line does (docs/runs.md). `os.environ["MLSTM_JAX_CACHE"] = ""` turns this off.

    Args:
        path: run folder, trained or imported, or a model of the package, such as reviews-1024; or a
            .safetensors that `export` wrote.
        checkpoint: best (by validation bits per character; of a run of `finetune`, by the loss of
            the validation labels), latest, or a step.
        compute: type of the products in reading texts; auto: that of the run's config, but bf16
            instead of fp32 for several texts at a time, and for generated text, where the CPU
            multiplies it faster.

    Raises:
        ValueError: the model or the checkpoint does not exist.
        OSError: the checkpoint is damaged.
    """
    environment.cache_programs()
    run = runs.with_compute(runs.load_run(Path(path), str(checkpoint)), compute)
    return TrainedModel(run, str(checkpoint), compute)
