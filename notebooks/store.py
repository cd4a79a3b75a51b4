"""Execute the notebooks of this folder, and store them with their outputs: `make notebooks`.

Each notebook's metadata then has a digest of its code, `executed`, so that a test can say whether
the stored outputs are those of the stored code.
"""

import base64
import hashlib
import io
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parent
COLOURS = 64  # of a stored picture; with all of them a notebook has twice the size


def code_digest(notebook: nbformat.NotebookNode) -> str:
    """The sha256 of the sources of all code cells, in order."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()


def reduce_pictures(notebook: nbformat.NotebookNode) -> None:
    """Store each picture with few colours."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
                reduced = io.BytesIO()
                picture.convert("RGB").quantize(COLOURS).save(reduced, "PNG", optimize=True)
                data["image/png"] = base64.b64encode(reduced.getvalue()).decode()


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        client = NotebookClient(
            notebook, timeout=600, record_timing=False, resources={"metadata": {"path": FOLDER}}
        )
        client.execute()
        reduce_pictures(notebook)
        notebook.metadata["executed"] = code_digest(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
