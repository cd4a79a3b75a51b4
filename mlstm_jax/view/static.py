"""The page as a folder of static files: onnxruntime-web computes what the server would answer.

::

    index.html, view.css, view.js   as they are served; ask.js is static.js, not what asks a server
    model.json, model.onnx          `Viewer.knowledge`, and the model
    onnxruntime/                    of the npm package, and the licences of the Python package
"""

import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from mlstm_jax import output
from mlstm_jax.errors import UserError
from mlstm_jax.run import as_weights
from mlstm_jax.transfer import onnx_file
from mlstm_jax.view.viewer import Viewer

_RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
_LICENCES = ("LICENSE", "ThirdPartyNotices.txt")
_PAGE = {"static.js": "ask.js"} | {name: name for name in ("index.html", "view.css", "view.js")}


def read_runtime(package: Path | None) -> dict[str, bytes]:
    """Return the files that the page needs of onnxruntime-web, a folder or .tgz; or UserError."""
    how = "type `npm pack onnxruntime-web@1.30.0` and give the .tgz file as `onnxruntime`."
    if package is None:
        raise UserError(f"a page without a server contains onnxruntime-web: {how}")
    try:
        if package.is_dir():
            return {name: (package / "dist" / name).read_bytes() for name in _RUNTIME}
        with tarfile.open(package) as archive:
            files = {name: archive.extractfile(f"package/dist/{name}") for name in _RUNTIME}
            return {name: file.read() for name, file in files.items() if file}
    except (OSError, KeyError, EOFError, tarfile.TarError, zlib.error) as error:
        raise UserError(f"{package}: is not onnxruntime-web ({error}): {how}") from error


def write_folder(out: Path, viewer: Viewer, runtime: Mapping[str, bytes]) -> int:
    """Write the folder, all or nothing; return its bytes.

    Args:
        out: a folder that does not exist, or is empty.
        viewer: of an mLSTM, which the page reads in fp32.
        runtime: see `read_runtime`.

    Raises:
        UserError: see `onnx_file.save`.
    """
    with output.atomic_directory(Path(os.path.realpath(out))) as folder:
        onnx_file.save(folder / "model.onnx", viewer.run, as_weights(viewer.run).source)
        import onnxruntime

        for source, name in _PAGE.items():
            shutil.copyfile(Path(__file__).parent / source, folder / name)
        (folder / "model.json").write_text(json.dumps(viewer.knowledge(), allow_nan=False))
        vendored = folder / "onnxruntime"
        vendored.mkdir()
        for name, content in runtime.items():
            (vendored / name).write_bytes(content)
        for name in _LICENCES:
            shutil.copyfile(Path(onnxruntime.__file__).parent / name, vendored / name)
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
