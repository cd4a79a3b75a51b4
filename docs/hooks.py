"""What the site adds to the Markdown of a page: pages outside docs/, and links.

The READMEs of results/, the cards of the pretrained models and the contest of an hour become pages.
A link to one of them, or to a notebook, becomes one to its page; a link to any other file outside
docs/ becomes its text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

# [text](path#anchor), but neither an image nor an address of the web; a text may have brackets.
_TEXT = r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]"
_LINK = re.compile(_TEXT + r"\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
_ROOT = Path(__file__).parent.parent


def _outside() -> dict[str, str]:
    """The files outside docs/ that are pages, by the page's path on the site."""
    pages = {
        "results/index.md": "results/README.md",
        "reviews-1024.md": "mlstm_jax/models/reviews-1024/card.md",
        "sentiment.md": "mlstm_jax/models/sentiment/card.md",
        "hour.md": "benchmarks/hour/README.md",
    }
    for readme in sorted(_ROOT.glob("results/*/README.md")):
        name = readme.parent.name
        pages[f"results/{name}.md"] = f"results/{name}/README.md"
    return pages


_OUTSIDE = _outside()
_PAGE_OF = {file: page for page, file in _OUTSIDE.items()}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/."""
    from mkdocs.structure.files import File

    for page, file in _OUTSIDE.items():
        text = (_ROOT / file).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's text with links in place."""
    site_path = page.file.src_uri
    folder = posixpath.dirname(_OUTSIDE.get(site_path, f"docs/{site_path}"))

    def replace(link: re.Match[str]) -> str:
        target = _page(posixpath.normpath(posixpath.join(folder, link[2])))
        if target is None:
            return link[1]
        relative = posixpath.relpath(target, posixpath.dirname(site_path) or ".")
        return f"[{link[1]}]({relative}{link[3] or ''})"

    return _LINK.sub(replace, markdown)


def _page(file: str) -> str | None:
    """Return the site's page of a file or folder of the repository; None: it has none."""
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if file.startswith("notebooks/") and file.endswith(".ipynb"):
        return file.replace(".ipynb", ".md")
    return _PAGE_OF.get(file) or _PAGE_OF.get(f"{file}/README.md")
