"""A trained model in Python, and how to load one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlstm_jax import shipped
from mlstm_jax.api.arguments import AnyClassifier, noted
from mlstm_jax.api.base import require_unchanged
from mlstm_jax.api.choice import begins_with_numpy
from mlstm_jax.api.fitting import FittingModel
from mlstm_jax.errors import extra, require
from mlstm_jax.fields import public
from mlstm_jax.loaded import load_small
from mlstm_jax.options import (
    HEATMAP,
    SAMPLING,
    HeatmapOptions,
    ReadingCompute,
    ReadingLibrary,
    SamplingOptions,
)
from mlstm_jax.transfer.heatmap import Heatmap, heat, require_either, score_heat
from mlstm_jax.transfer.trace import as_text
from mlstm_jax.transfer.trace import generate as run_generate


class TrainedModel(FittingModel):
    """A trained or imported model; `load` and `train` return one.

    It is immutable. It keeps the programs that it compiles, so a second call compiles nothing. A
    copy is the model itself. It is pickled as the path it was loaded from, which must then have the
    same parameters. A wrong argument of a method is a ValueError that names it; one of another name
    is a TypeError.

    Attributes:
        path: run folder, or file of weights.
        checkpoint: see `load`.
        compute: see `load`.
        step: of the checkpoint, in updates; 0 for imported weights.
        cleaning: how its texts are cleaned.
        hidden: number of units H in a layer.
        loaded: the model in memory, for the package's own programs.

    Examples:
        The examples of its methods begin with these lines, too.

        >>> import mlstm_jax as mlstm
        >>> model = mlstm.load("sentiment")
        >>> model.hidden
        1024
    """

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        # Store the step: if training continues, the best checkpoint may change.
        step = self.checkpoint if self.loaded.imported else str(self.step)
        # A pretrained model is found by its name in any environment.
        path = self._place.name if shipped.is_shipped(self._place) else self._place
        return _load_same, (str(path), step, self.compute, self._library, self.loaded.fingerprint)

    @public
    def generate(self, prompt: str = "", options: SamplingOptions = SAMPLING, **fields: Any) -> str:
        """Write one text; `generate_pieces` gives several.

        Args:
            prompt: text to continue; "" starts a document.
            options: how to generate.
            fields: of these options, such as `bytes=100`.

        Returns:
            The prompt and the text after it; � for bytes that are not UTF-8.

        Raises:
            ValueError: `samples` is not 1, the model does not predict the next byte, or has no
                unit of `set_unit`.

        Examples:
            >>> text = model.generate("The film", bytes=40, seed=1)
            >>> text.startswith("The film")
            True
        """
        options = replace(options, **fields)
        rule = "1; `generate_pieces` gives several texts"
        require(options.samples == 1, "samples", options.samples, rule)
        pieces = self.generate_pieces(prompt, options)
        return prompt + "".join(as_text(piece for (piece,) in pieces))

    @public
    def generate_pieces(
        self, prompt: str = "", options: SamplingOptions = SAMPLING, **fields: Any
    ) -> Iterator[list[bytes]]:
        """Write up to 1,000 samples at once; a sample does not depend on their number.

        Args:
            prompt, options, fields: see `generate`.

        Returns:
            An iterator of the next piece of each sample, without the prompt.

        Examples:
            >>> pieces = list(model.generate_pieces("The film", bytes=9, samples=2))
            >>> len(pieces[0])
            2
        """
        noted([prompt])
        return run_generate(self._tracer, prompt, replace(options, **fields))

    @public
    def heatmap(
        self,
        text: str,
        unit: int | None = None,
        *,
        score: AnyClassifier | None = None,
        options: HeatmapOptions = HEATMAP,
        **fields: Any,
    ) -> Heatmap:
        """Read a unit's value, or a classifier's score, after each character of a text.

        Args:
            text: the text to read.
            unit: the unit's number in its layer.
            score: instead of a unit: what `transfer` returned, or its folder. The score after a
                character is the classifier's of the bytes so far; after a space, what `classify`
                answers for the text before it.
            options: what is shown.
            fields: of these options, such as `label="positive"` or `layer=0`.

        Returns:
            What a notebook shows in colours, and `save` writes as a page.

        Raises:
            ValueError: the text is blank; both or neither of `unit` and `score` are given; or there
                is no such unit, layer, state or class.

        Examples:
            >>> model.heatmap("It was good.", 236).save("heat.html")
        """
        options = replace(options, **fields)
        require_either(unit, score, options)
        noted([text])
        if score is None:
            return heat(self._tracer, text, unit or 0, options)
        return score_heat(self._tracer, text, self._classifier(score), options)

    @public
    def view(
        self,
        classifier: Path | str | None = None,
        *,
        label: str | None = None,
        host: str = "127.0.0.1",
        port: int = 8000,
    ) -> None:
        """Serve a local page, which shows how the model reads a text, until Ctrl-C.

        Args:
            classifier: folder of `transfer`, to show class probabilities and a score; unset: the
                one that comes with a pretrained model.
            label: the class of the score with which the page begins; unset: the last, such as
                positive.
            host: address to listen on; 127.0.0.1 and ::1 accept only this machine. The page has no
                login.
            port: the port; 0 takes a free one. The address is printed.

        Raises:
            ValueError: `label` is given without a classifier that has a score; the classifier
                belongs to another model; the port is in use; or the extra "view" is missing.
        """
        with extra("view", "the page needs Starlette and uvicorn"):
            from mlstm_jax.view.server import show_page
        folder = Path(classifier) if classifier else None
        show_page(self.loaded, folder, label=label, host=host, port=port)

    @public
    def report(self, corpus: str | Path | None = None) -> str:
        """Compare the bits per character of the validation split with gzip's; show a sample.

        A model that does not predict the next byte neither compresses nor writes.

        Args:
            corpus: see `evaluate`.

        Returns:
            Lines of text, to print.

        Examples:
            >>> "gzip" in mlstm.load("runs/mine").report()
            True
        """
        from mlstm_jax.training.evaluation import report_of  # imports JAX

        is_writer = self.loaded.architecture.objective == "next-byte"
        sample = self.generate() if is_writer else ""
        return report_of(self.run, corpus, self.evaluate("valid", corpus=corpus), sample)


@public
def load(
    path: str | Path,
    checkpoint: str | int = "best",
    compute: ReadingCompute = "auto",
    reader: ReadingLibrary = "auto",
) -> TrainedModel:
    """Load a trained model.

    NumPy reads a recurrent model of the package or of `export` at once, and JAX is not imported.
    For other models the compiled programs are kept for the next process (docs/troubleshooting.md).

    Args:
        path: run folder, trained or imported, or a pretrained model, such as sentiment; or a
            .safetensors that `export` wrote.
        checkpoint: best (by validation bits per character; of a run of `finetune`, by the loss of
            the validation labels), latest, or a step.
        compute: type of the products in reading texts; auto: as in the run's config, but bf16
            instead of fp32 for several texts at a time, and for generated text, where JAX reads
            and the CPU multiplies it faster. int8: NumPy reads whole texts, as `classify` and
            `encode` do, with int8 products by onnxruntime (docs/without_jax.md); the rest is fp32.
        reader: numpy, in fp32; or jax; auto: numpy where it can, unless JAX has a GPU, or the CPU
            multiplies bf16 and the texts of a call are many (docs/without_jax.md).

    Returns:
        The model, ready to read.

    Raises:
        ValueError: the model or the checkpoint does not exist.
        OSError: the checkpoint is damaged.

    Examples:
        >>> model = mlstm.load("sentiment")
        >>> model.classify(["It broke after a week."])[0]["negative"] > 0.8
        True
    """
    chosen = str(checkpoint)
    shipped.require_model(Path(path))
    if begins_with_numpy(chosen, compute, reader):
        small = load_small(Path(path))
        if small:
            if compute == "int8":
                small = replace(small, compute=compute)
            return TrainedModel(small, chosen, compute, reader)
    small_kinds = "mLSTMs, LSTMs and GRUs of the package or of `export`"
    rule = f"another type: NumPy alone reads in int8, {small_kinds}"
    require(compute != "int8", "compute", compute, rule)
    rule = f"auto or jax: NumPy reads {small_kinds}, in fp32 or int8"
    require(reader != "numpy", "reader", reader, rule)
    from mlstm_jax.api import jax_model  # imports JAX

    return TrainedModel(jax_model.load(Path(path), chosen, compute).run, chosen, compute, reader)


def _load_same(
    path: str,
    checkpoint: str,
    compute: ReadingCompute,
    reader: ReadingLibrary,
    fingerprint: str,
) -> TrainedModel:
    """Load a pickled model, with the parameters that it had."""
    model = load(path, checkpoint, compute, reader)
    require_unchanged(model.loaded, fingerprint)
    return model
