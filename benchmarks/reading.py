"""Measure the CPU seconds of reading texts, mean_h features of a pretrained model, and writing.

    python benchmarks/reading.py --short sst.csv --long imdb.jsonl.gz --other CHECKOUT --json o

Each version runs in a process of its own, and their rounds alternate: this checkout with each
--compute, the checkout named by --other, and, where torch is installed, the same model written as a
simple loop in PyTorch, in fp32 and bf16. Cases of more than 200 kB are read once. A TF-IDF pipeline
(fit and predict) stands beside them. The case "one long" is a text that repeats "ab "; versions
that differ by a factor of the rows can be given a shorter one. Last, texts are generated.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODEL = "reviews-1024"
MUCH = 200_000  # bytes
GENERATED = {"generate 1 text": 1, "generate 16 texts": 16, "generate 64 texts": 64}
GENERATED_BYTES = 512  # of each text
SENTENCE = (
    "A stirring, funny and finally transporting re-imagining of Beauty and the Beast, of the film."
)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", type=Path, help="file of short texts; unset: made-up ones")
    parser.add_argument("--long", type=Path, help="file of long texts; unset: made-up ones")
    parser.add_argument("--short-counts", type=int, nargs="+", default=[8, 64, 1000], metavar="N")
    parser.add_argument("--long-counts", type=int, nargs="+", default=[20, 50, 200], metavar="N")
    parser.add_argument("--bytes", type=int, default=300_000, help="of the one long text")
    parser.add_argument("--other", type=Path, help="another checkout to measure in the same rounds")
    parser.add_argument("--compute", nargs="+", default=["fp32", "auto"], help="of this checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # kind, and type of products
    return parser.parse_args()


def make_cases(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the texts of each case by its name."""
    from mlstm_jax.corpora.documents import Recipe
    from mlstm_jax.corpora.readers import read_documents
    from mlstm_jax.corpora.sources import Source

    def read_texts(path: Path) -> list[str]:
        return [one.text if one else "" for one in read_documents(Source(str(path)), Recipe())]

    short_texts = [SENTENCE[:80], SENTENCE] * max(arguments.short_counts)
    long_texts = [SENTENCE * 12, SENTENCE * 20] * max(arguments.long_counts)
    if arguments.short:
        short_texts = read_texts(arguments.short)
    if arguments.long:
        long_texts = read_texts(arguments.long)
    return {
        "one sentence": [SENTENCE],
        **{f"{count} short": short_texts[:count] for count in arguments.short_counts},
        **{f"{count} long": long_texts[:count] for count in arguments.long_counts},
        "one long": ["ab " * (arguments.bytes // 3)],
    }


def torch_reader(compute: str) -> Any:
    """Return a function of texts: the model's equations as a loop over padded batches of 64."""
    import numpy as np
    import torch

    import mlstm_jax

    model = mlstm_jax.load(MODEL)
    (weights,) = model.flax[0].reading_weights(model.flax[1], several_rows=False)
    mx, x, mh, wh, b = (torch.from_numpy(np.array(w)) for w in weights[:5])
    torch.set_num_threads(1)  # its threads wait busily, which on a shared core is most of the time
    kind = torch.bfloat16 if compute == "bf16" else torch.float32
    mh, wh = mh.to(kind), wh.to(kind)

    @torch.inference_mode()
    def read(texts: list[str]) -> Any:
        cleaned = sorted(model.run.cleaned(texts), key=len)
        for at in range(0, len(cleaned), 64):
            part = cleaned[at : at + 64]
            count_B1 = torch.tensor([[max(len(text), 1)] for text in part])
            bytes_BT = torch.zeros(len(part), int(count_B1.max()), dtype=torch.long)
            for row, text in enumerate(part):
                bytes_BT[row, : len(text)] = torch.tensor(list(text))
            h = c = sums = torch.zeros(len(part), mh.shape[0])
            for t, now in enumerate(bytes_BT.T):
                m = mx[now] * (h.to(kind) @ mh).float()
                z = x[now] + (m.to(kind) @ wh).float() + b
                i, f, o, u = z.chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * u.tanh()
                h = o.sigmoid() * c.tanh()
                sums = sums + torch.where(t < count_B1, h, 0)

    return read


def worker(arguments: argparse.Namespace) -> None:
    """Read the cases that standard input names; answer each with its CPU seconds."""
    cases = make_cases(arguments)
    kind, _, compute = arguments.worker.partition(" ")
    if kind == "torch":
        read = torch_reader(compute)
    else:
        import mlstm_jax

        model = mlstm_jax.load(MODEL, **({"compute": compute} if compute else {}))
        read = model.encode
    for line in sys.stdin:
        started, case = time.process_time(), line.strip()
        if samples := GENERATED.get(case):
            how = {"bytes": GENERATED_BYTES, "samples": samples, "temperature": 1.0}
            list(model.generate_pieces(**how))
        else:
            read(cases[case])
        print(time.process_time() - started, flush=True)


def tfidf(texts: list[str]) -> float:
    """Return the CPU seconds of fitting a TF-IDF pipeline to texts, and predicting them."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    labels = [number % 2 for number in range(len(texts))]
    started = time.process_time()
    pipeline = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression())
    pipeline.fit(texts, labels).predict(texts)
    return time.process_time() - started


def main() -> None:
    """Measure, print and write."""
    arguments = parse_arguments()
    if arguments.worker:
        worker(arguments)
        return
    from importlib.util import find_spec

    from measure import write_results

    here = Path(__file__).parents[1]
    versions = {f"here {compute}": (f"package {compute}", here) for compute in arguments.compute}
    if arguments.other:
        versions["other"] = ("package", arguments.other)
    if find_spec("torch"):
        versions["torch fp32"] = ("torch fp32", here)
        if arguments.compute != ["fp32"]:
            versions["torch bf16"] = ("torch bf16", here)
    workers = {
        name: subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--worker", kind],
            env=os.environ | {"PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, (kind, folder) in versions.items()
    }

    def measure(name: str, case: str) -> float:
        process = workers[name]
        assert process.stdin
        assert process.stdout
        print(case, file=process.stdin, flush=True)
        return float(process.stdout.readline())

    rows = []
    cases = make_cases(arguments)
    sizes = {name: sum(len(text.encode()) for text in texts) for name, texts in cases.items()}
    sizes |= {name: samples * GENERATED_BYTES for name, samples in GENERATED.items()}
    for case, size in sizes.items():
        names = [one for one in workers if case in cases or not one.startswith("torch")]
        if size < MUCH:
            for name in names:
                measure(name, case)  # compiles
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(arguments.rounds if size < MUCH else 1):
            for name in names[:: 1 if number % 2 else -1]:
                seconds[name].append(measure(name, case))
        if len(texts := cases.get(case, [])) > 1:
            seconds["tfidf"] = [tfidf(texts) for _ in range(arguments.rounds)]
        median = {name: statistics.median(values) for name, values in seconds.items()}
        rows.append({"case": case, "bytes": size, "median": median, "cpu_seconds": seconds})
        print(f"{case}, {size:,} bytes: {', '.join(f'{k} {v:.3f} s' for k, v in median.items())}")
    for process in workers.values():
        process.communicate()
    if arguments.json:
        write_results(arguments.json, "reading", model=MODEL, rounds=arguments.rounds, rows=rows)


if __name__ == "__main__":
    main()
