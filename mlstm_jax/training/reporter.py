"""What a run reports: before its first step, and then as lines of metrics and of progress."""

import math
import time

import jax

from mlstm_jax.config import Config
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.data.stream import TrainStream
from mlstm_jax.digest import Extent
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import KnownError
from mlstm_jax.terminal import ProgressLine, rate
from mlstm_jax.training.evaluation import Score
from mlstm_jax.training.metrics import BITS_PER_NAT, MetricsLog
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.phases import ResolvedPhase
from mlstm_jax.training.resume import Beginning
from mlstm_jax.training.step import StepMetrics


class Diverged(KnownError):
    """The loss or the gradient was inf or NaN for too long, or the loss was far too high.

    Attributes:
        step: the step at which the divergence was detected.
        reason: the evidence, without advice.
        since: the last step before the divergence began.
    """

    def __init__(self, step: int, reason: str, since: int, advice: str = "") -> None:
        super().__init__(f"stopped at step {step}: {reason}. {advice}")
        self.step, self.reason, self.since = step, reason, since

    def with_resume_advice(self, checkpoint: int | None, rate: float) -> "Diverged":
        """Return the same error with advice.

        Args:
            checkpoint: the newest one from before it began, if any.
            rate: `optimizer.learning_rate` of the run.
        """
        begin = (
            "There is no checkpoint from before that, so the same command starts over"
            if checkpoint is None
            else f"The checkpoints after step {self.since} are deleted; the same command resumes "
            f"from that of step {checkpoint}"
        )
        return Diverged(
            self.step,
            self.reason,
            self.since,
            f"{begin}. Lower `optimizer.learning_rate`, such as to {rate / 2:g}, or "
            "`optimizer.clip_norm`, or start a new run with `precision.compute` bf16.",
        )


def _before(step: int, count: int) -> int:
    """Return the last step whose state is known to be good, before `count` bad reports.

    The report of a step is of the state before its update. So the first bad one, of step
    `step` − `count` + 1, is of the state of one step earlier, and the state before that is good.
    """
    return max(0, step - count - 1)


class Reporter:
    """Writes the results of the steps as lines, and stops a run that has diverged.

    Attributes:
        high_steps: number of latest steps in a row whose loss was above train.divergence_bpc.
    """

    def __init__(
        self,
        config: Config,
        stream: TrainStream,
        log: MetricsLog,
        progress: ProgressLine,
        point: Beginning,
    ) -> None:
        self._config, self._stream, self._log, self._progress = config, stream, log, progress
        self._started = time.monotonic() - log.seconds
        self._first = point.step
        self.high_steps = point.high_steps
        self.restart_clock(point.step)

    def restart_clock(self, step: int) -> None:
        """Measure the training rate from now and from `step` on; called after other work."""
        self._clock, self._clock_step, self._waited = time.monotonic(), step, 0.0

    def step(self, step: int, metrics: StepMetrics) -> None:
        """Report the step after which `step` batches have been seen; its metrics are on the host.

        Raises Diverged after too many skips in a row, or too many steps in a row with a high loss.
        """
        if step == self._first + 1:
            self.restart_clock(step)  # The first step includes compilation.
        diverged = self._diverged(step, metrics)
        if step % self._config.train.log_every == 0 or diverged:
            self._write_line(step, metrics)
        if diverged:
            self.event(step, "diverged", reason=diverged.reason)
            raise diverged

    def waited(self, seconds: float) -> None:
        """Add time in which the loop waited for the next batch."""
        self._waited += seconds

    def _diverged(self, step: int, metrics: StepMetrics) -> Diverged | None:
        train = self._config.train
        skips = int(metrics.consecutive_skips)
        if skips >= self._config.precision.max_consecutive_skips:
            reason = (
                f"the last {skips} updates were skipped, because the loss or the gradient contained"
                f" inf or NaN (loss scale now {metrics.loss_scale:g})"
            )
            return Diverged(step, reason, _before(step, skips))
        bpc = float(metrics.loss) * BITS_PER_NAT
        self.high_steps = 0 if bpc <= train.divergence_bpc else self.high_steps + 1
        if self.high_steps < train.divergence_steps:
            return None
        reason = (
            f"the training loss was above {train.divergence_bpc:g} bits per character "
            f"(train.divergence_bpc) for {self.high_steps} steps in a row, {bpc:.3g} at the last"
        )
        return Diverged(step, reason, _before(step, self.high_steps))

    def _write_line(self, step: int, metrics: StepMetrics) -> None:
        data = self._config.data
        now = time.monotonic()
        steps = step - self._clock_step or math.nan  # no step since the clock has started
        speed = steps * data.batch * data.window / max(now - self._clock, 1e-9)
        # Without an update since the last line there is no mean.
        tally = {name: float(value) for name, value in metrics.tally._asdict().items()}
        updates = tally["updates"] or math.nan
        loss, signal, trace = tally["loss"] / updates, tally["signal"], tally["trace"]
        label = {}
        if self._config.model.labels:
            # The steps of a line may contain no labels.
            label = {"label_loss": tally["label_loss"] / (tally["labels"] or math.nan)}
        self._log.write(
            "train",
            step,
            **self._position(step),
            loss=loss,
            bpc=loss * BITS_PER_NAT,
            learning_rate=float(metrics.learning_rate),
            grad_norm=tally["grad_norm"] / updates,
            gradient_signal=signal / updates,
            gradient_trace=trace / updates,
            **label,
            # In rows; the estimates may be too noisy to give one.
            noise_scale=trace / signal if signal > 0 and trace > 0 else math.nan,
            loss_scale=float(metrics.loss_scale),
            skipped=int(metrics.skipped),
            bytes_per_second=speed,
            data_wait_fraction=min(1.0, self._waited / max(now - self._clock, 1e-9)),
            seconds=now - self._started,
        )
        skipped = f"  {int(metrics.skipped)} skipped" if int(metrics.skipped) else ""
        labelled = "".join(f"  label loss {x:.3f}" for x in label.values() if not math.isnan(x))
        shown = "" if math.isnan(speed) else f"  {rate(speed)}"
        self._progress.update(step, f"bpc {loss * BITS_PER_NAT:.3f}{labelled}{shown}{skipped}")
        self.restart_clock(step)

    def evaluation(self, step: int, score: Score, *, is_last: bool) -> None:
        """Report the score of the validation split at `step`.

        Raises Diverged if it is far too high at the end of the run, which may be too short for
        `train.divergence_steps`.
        """
        labels, shown = {}, ""
        if score.label_loss is not None:
            labels = {"label_loss": score.label_loss, "accuracy": score.accuracy}
            shown = f"  label loss {score.label_loss:.3f}  accuracy {score.accuracy:.3f}"
        self._log.write(
            "eval",
            step,
            **self._position(step),
            loss=score.loss,
            bpc=score.bpc,
            bytes_scored=score.bytes_scored,
            **labels,
            evaluation_seconds=score.seconds,
            seconds=time.monotonic() - self._started,
        )
        self._progress.say(
            f"step {step}  epoch {self._stream.epoch(step):.2f}  validation bpc {score.bpc:.4f}"
            + shown
        )
        limit = self._config.train.divergence_bpc
        if is_last and not score.bpc <= limit:
            reason = (
                f"at the end the validation loss is {score.bpc:.3g} bits per character, above "
                f"{limit:g} (train.divergence_bpc)"
            )
            self.event(step, "diverged", reason=reason)
            raise Diverged(step, reason, _before(step, self.high_steps))

    def extent(self) -> Extent:
        """Return the extent of the metrics so far, for a checkpoint."""
        return self._log.extent()

    def finished(self, step: int) -> None:
        """Report the end of a run, unless an earlier session has reported it."""
        if self._log.finished_at != step:
            self.event(step, "finished")

    def event(self, step: int, event: str, **values: object) -> None:
        """Report an event that is neither a step nor a score."""
        self._log.write("event", step, event=event, **values)

    def _position(self, step: int) -> dict[str, float]:
        return {
            "epoch": self._stream.epoch(step),
            "bytes_seen": self._stream.bytes_seen(step),
        }


def announcement(
    config: Config,
    phases: list[ResolvedPhase],
    devices: Parallel,
    cluster: Cluster,
    corpus: Corpus,
    point: Beginning,
) -> str:
    """Describe what the run will train, and on which devices."""
    total, first = phases[-1].last, point.step
    if first >= total:
        limits = {"train.steps": config.train.steps, "train.epochs": config.train.epochs}
        shown = " and ".join(f"{name} (now {value:,})" for name, value in limits.items() if value)
        more = "add a phase" if config.phases else f"raise {shown}"
        return f"{config.out} is finished: {first:,} steps. To train for more, {more}."
    count = sum(leaf.size for leaf in jax.tree.leaves(point.state.params))
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
            + (f"; {phase.describe_rows()}" if phase is not phases[0] else "")
        )
        if stream.shards < stream.wanted_shards:
            lines.append(
                f"{stream.shards:,} shards instead of {stream.wanted_shards:,}: the corpus is small"
            )
        padding_fraction = phase.padding_fraction if config.phases else stream.padding_fraction
        if padding_fraction > 0.1:
            lines.append(
                f"{padding_fraction:.0%} of {'the phase' if config.phases else 'an epoch'} is "
                "padding and idle rows; a smaller data.batch or data.window would waste less"
            )
    return "\n".join(lines)
