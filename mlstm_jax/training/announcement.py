"""What a run reports before its first step."""

import jax

from mlstm_jax.config import Config
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.phases import ResolvedPhase
from mlstm_jax.training.resume import ResumePoint


def announcement(
    config: Config,
    phases: list[ResolvedPhase],
    devices: Parallel,
    cluster: Cluster,
    corpus: Corpus,
    found: ResumePoint,
) -> str:
    """Describe what the run will train, and on which devices."""
    total, first = phases[-1].last, found.step
    if first >= total:
        limits = {"--train.steps": config.train.steps, "--train.epochs": config.train.epochs}
        shown = " and ".join(f"{name} {value:,}" for name, value in limits.items() if value)
        more = "add a phase" if config.phases else f"raise {shown}"
        return f"{config.out} is finished: {first:,} steps. To train for more, {more}."
    count = sum(leaf.size for leaf in jax.tree.leaves(found.state.params))
    start = f"resuming at step {first:,} of" if first else "training"
    where = f"{devices.count} {devices.devices[0].platform} device(s)"
    if cluster.processes > 1:
        where += f" of {cluster.processes} processes"
    size = corpus.manifest.splits["train"].bytes
    lines = [
        f"{start} {total:,} steps, {phases[-1].stream.epoch(total):.2f} epochs: {count:,} "
        f"parameters in {config.precision.compute} on {where}; run folder {config.out}",
    ]
    for phase in phases:
        data, stream = phase.config.data, phase.stream
        steps = f"steps {phase.first:,} to {phase.last:,}: " if len(phases) > 1 else ""
        lines.append(
            f"{steps}{data.batch} rows x {data.window} bytes per step, from {size:,} bytes in "
            f"{stream.shards:,} shards"
            + (f"; {phase.describe_carry()}" if phase.rows_before else "")
        )
        if stream.shards < stream.wanted_shards:
            lines.append(
                f"the corpus is too small for {stream.wanted_shards:,} shards; the run uses "
                f"{stream.shards:,}"
            )
        padding_fraction = phase.padding_fraction if config.phases else stream.padding_fraction
        if padding_fraction > 0.1:
            lines.append(
                f"{padding_fraction:.0%} of {'the phase' if config.phases else 'an epoch'} is "
                "padding and rows that wait for the longest one; "
                + ("more data.shards, or " if phase.growth else "")
                + "a smaller data.batch or data.window would waste less"
            )
    return "\n".join(lines)
