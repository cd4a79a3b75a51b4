"""Write the configs of all studies and pretrained models as this version does: `make reseal`.

To be run after a field of a config was renamed (`RENAMED` in mlstm_jax/options.py).
"""

import gzip
import json
from pathlib import Path
from typing import Any

from mlstm_jax.config import from_json, load_json, to_json

ROOT = Path(__file__).parents[1]


def resealed(run: dict[str, Any], study: Path) -> dict[str, Any]:
    """The line of a run with its config written anew; one without a config as it is."""
    if "config" not in run:
        return run
    config = from_json(json.dumps(run["config"]), study)
    return run | {"config": json.loads(to_json(config))}


def main() -> None:
    """Write what has changed, and name it."""
    for study in sorted(ROOT.glob("results/*/runs.jsonl.gz")):
        before = gzip.decompress(study.read_bytes()).decode()
        lines = [json.dumps(resealed(json.loads(line), study)) for line in before.splitlines()]
        after = "\n".join(lines) + "\n"
        if after != before:
            study.write_bytes(gzip.compress(after.encode(), 9, mtime=0))
            print(study.relative_to(ROOT))
    for path in sorted(ROOT.glob("mlstm_jax/models/*/config.json")):
        text = to_json(load_json(path))
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
