"""The command `view`."""

from pathlib import Path

from mlstm_jax import shipped
from mlstm_jax.commands import Checkpoint, Flag, RunFolder
from mlstm_jax.errors import UserError, extra
from mlstm_jax.terminal import show


def view(
    run: RunFolder = Path(shipped.MODEL),
    classifier: Path | None = None,
    score: Flag = False,
    label: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    checkpoint: Checkpoint = "best",
) -> None:
    """Serve a local page: type a text to see units, classes and next bytes, or continue it.

    Args:
        classifier: folder of `mlstm-jax transfer` with this run, to show class probabilities;
            unset: for a pretrained model the one that comes with it, and its score.
        score: start with the classifier's score after each character and word, not with a unit.
        label: the class or label of that score; unset: the last, such as positive.
        host: address to listen on; 127.0.0.1 and ::1 accept only this machine. The page has no
            login.
        port: 0 takes a free one.
    """
    with extra("view", "the page needs Starlette and uvicorn"):
        import starlette as _
        import uvicorn as _  # noqa: F401, F811
    from mlstm_jax.api.model import load
    from mlstm_jax.transfer.classifier import Classifier, load_classifier
    from mlstm_jax.transfer.heatmap import shown_label
    from mlstm_jax.view.server import bind, serve
    from mlstm_jax.view.viewer import Viewer

    if not classifier and (classifier := shipped.classifier(run)):
        score = True
    if (score or label) and not classifier:
        raise UserError("score and label need `classifier`, a folder of `mlstm-jax transfer`.")
    chosen: Classifier | None = None
    loaded = load(run, checkpoint).loaded
    if classifier:
        chosen = load_classifier(classifier)
        chosen.require_model(classifier, loaded)
    if chosen and (score or label):
        chosen.require_no_words("the score after each character")
        loaded.architecture.require_next_byte("a score after each character")
        label = shown_label(chosen, label)
    viewer = Viewer(loaded, chosen, label, shipped.example(run).strip())
    address = bind(host, port)
    show(f"{address.url} shows {loaded.name}; Ctrl-C stops it")
    serve(viewer, address)
