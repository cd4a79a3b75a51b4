"""Write the results of benchmarks/gpu.py as a page of Markdown.

    python benchmarks/gpu_report.py gpu_results
    python benchmarks/gpu_report.py gpu_results --into results/speed/README.md

The page is FOLDER/report.md; --into also puts it between the lines `<!-- gpu:begin -->` and
`<!-- gpu:end -->` of a file, in place of what is there. Next to each measured step is the time that
benchmarks/results/gpu_program_*.json models for such a GPU.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
Json = dict[str, Any]


def load(folder: Path) -> dict[str, Json]:
    """Return the available results by name."""
    files = {path.stem: path for path in sorted(folder.glob("*.json"))}
    return {name: json.loads(path.read_text()) for name, path in files.items()}


def modelled(device: str, row: Json) -> str:
    """Return the modelled milliseconds of a step with launches of 1 us, or "" if unknown."""
    suffix = {"ours": "", "pallas": "_pallas"}.get(row["implementation"])
    if suffix is None or row["recompute_every"]:
        return ""
    for path in sorted(RESULTS.glob(f"gpu_program_*{suffix}.json")):
        kind = path.stem.removeprefix("gpu_program_").removesuffix(suffix)
        if kind.upper() not in device.upper():
            continue
        for found in json.loads(path.read_text())["rows"]:
            same = ("hidden", "window", "dtype")
            if all(found[key] == row[key] for key in same) and found["rows"] == row["batch"]:
                return f"{1e3 * found['seconds'][1]:.1f}"
    return ""


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]


def size(row: Json) -> str:
    """Return H / B / T and the type."""
    return f"{row['hidden']} / {row['batch']} / {row['window']}, {row['dtype']}"


def milliseconds(row: Json) -> list[str]:
    """Return the median, and the range from the fastest to the slowest."""
    median, least, most = (1e3 * row[key] for key in ("median_s", "min_s", "max_s"))
    return [f"{median:.2f}", f"{least:.2f} to {most:.2f}"]


def name_of(row: Json) -> str:
    """Return the name of what was timed."""
    every = f", recompute every {row['recompute_every']}" if row["recompute_every"] else ""
    return row["implementation"] + every


def page(found: dict[str, Json]) -> str:
    """Return the page as Markdown."""
    device = next((one["device"] for one in found.values() if "device" in one), "no device")
    versions = next((one["versions"] for one in found.values() if "versions" in one), {})
    about = ", ".join(f"{name} {version}" for name, version in versions.items())
    dates = sorted({one["date"] for one in found.values() if "date" in one})
    lines = [f"### Measured on {device}", "", f"{', '.join(dates)}; {about}.", ""]
    if "check" in found:
        for name, result in found["check"]["checks"].items():
            kernels = result.get("kernels_a_time_step")
            more = f", kernels a time step {'+'.join(map(str, kernels))}" if kernels else ""
            error = f", largest error {result['largest_error']:.1e}" if "limit" in result else ""
            lines.append(f"- {'passed' if result['passed'] else '**failed**'}: {name}{more}{error}")
        lines.append("")
    titles = {
        "fp8": "Train step with fp8",
        "mixed": "Train step in other types",
        "train_step": "Train step",
        "recurrence": "Recurrence",
    }
    for key, title in titles.items():
        if key in found:
            rows = [
                [size(row), row["what"].replace("_", " "), name_of(row), *milliseconds(row),
                 f"{row['bytes_per_s'] / 1e6:.2f}", f"{row['fraction_of_large_product']:.2f}",
                 modelled(device, row) if key == "train_step" else ""]
                for row in found[key]["rows"]
            ]  # fmt: skip
            lines += [f"{title}: median, and range from fastest to slowest:", ""]
            head = ["H / B / T, type", "what", "of", "ms", "range", "MB/s"]
            head += ["of a large product", "modelled"]
            lines += table(head, rows)
    if "products" in found:
        rows = [
            [size(row), row["implementation"], *milliseconds(row),
             f"{row['flops'] / row['median_s'] / 1e12:.0f}",
             f"{row['fraction_of_large_product']:.2f}"]
            for row in found["products"]["rows"]
        ]  # fmt: skip
        lines += ["The products of a step: median, and range from fastest to slowest:", ""]
        head = ["H / B / T, type", "product", "ms", "range", "Tflop/s", "of a large one"]
        lines += table(head, rows)
    if "features" in found:
        one = found["features"]
        lines += [
            f"Features of a {one['hidden']}-d model: {one['texts_per_s']:.0f} texts of about "
            f"{one['bytes'] // one['texts']} bytes a second, {one['fraction_of_forward']:.2f} of "
            "the bare forward pass.",
            "",
        ]
    for name in ("training_bf16", "training_fp8"):
        if name not in found:
            continue
        one = found[name]
        last = one["train"][-1]
        scores = ", ".join(f"{bpc:.3f} at step {step:,}" for step, bpc in one["eval"])
        lines += [
            f"{one['hidden']} units, {one['batch']} rows of {one['window']} bytes, {one['dtype']}: "
            f"{last[0]:,} steps and {last[1] / 1e6:.0f} MB in {one['seconds'] / 60:.1f} minutes; "
            f"validation bits per character {scores or 'not measured'}.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the --out of gpu.py")
    parser.add_argument("--into", type=Path, help="also put the page into this file")
    given = parser.parse_args()
    found = load(given.folder) if given.folder.is_dir() else {}
    if not found:
        parser.error(f"{given.folder}: has no results; create them with benchmarks/gpu.py")
    made = page(found)
    (given.folder / "report.md").write_text(made)
    print(made)
    if given.into:
        text = given.into.read_text()
        pattern = re.compile(r"(<!-- gpu:begin -->\n).*?(<!-- gpu:end -->)", re.DOTALL)
        if not pattern.search(text):
            parser.error(f"{given.into} has no lines <!-- gpu:begin --> and <!-- gpu:end -->")
        given.into.write_text(pattern.sub(lambda at: f"{at[1]}{made}{at[2]}", text))


if __name__ == "__main__":
    main()
