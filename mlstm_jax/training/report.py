"""What a run reports: before its first step, and then as lines of metrics and of progress."""

import math
import signal
import time
from pathlib import Path
from typing import Any

from mlstm_jax.config import Config
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import KnownError
from mlstm_jax.guard import Interrupted, strongest
from mlstm_jax.parallel import Parallel
from mlstm_jax.record import Meta, resume_advice
from mlstm_jax.terminal import ProgressLine, file_size
from mlstm_jax.training.evaluation import Score
from mlstm_jax.training.memory import parameter_count
from mlstm_jax.training.metrics import MetricsLog
from mlstm_jax.training.rows import Rows, meta_of
from mlstm_jax.training.step import StepMetrics
from mlstm_jax.training.tally import BITS_PER_NAT, line_of, shown_of


class Diverged(KnownError):
    """The loss or the gradient was inf or NaN for too long, or the loss was far too high.

    It was detected at `step`, and began after `last_good_step`.
    """

    def __init__(self, step: int, reason: str, last_good_step: int) -> None:
        super().__init__(reason)
        self.step = step
        self.reason = reason
        self.last_good_step = last_good_step

    def advise(self, folder: Path) -> None:
        """Add what a restart will do; the later checkpoints of the run have been deleted."""
        self.args = (
            f"{self.reason} Checkpoints after step {self.last_good_step} are deleted. "
            f"{resume_advice(folder)}. Lower the learning rate, such as by half, or the clip norm.",
        )


class Reporter:
    """Writes the results of a session's steps as lines, and stops a run that has diverged."""

    def __init__(
        self, rows: Rows, log: MetricsLog, progress: ProgressLine, step: int, meta: Meta
    ) -> None:
        """Begin at a step; `meta` is what the run was trained on until there."""
        self._rows = rows
        self._config = rows.config
        self._log = log
        self._progress = progress
        self._first_step = step
        self._meta = meta
        self._high_steps = meta.high_steps
        self.restart_clock(step)

    def begin(
        self, devices: Parallel, cluster: Cluster, changed: list[str], notes: list[str]
    ) -> None:
        """Report what is trained, on which devices, what has changed since the run began, notes."""
        step = self._first_step
        is_finished = step >= self._rows.steps
        if is_finished:
            more = "To train for more, raise its steps or epochs."
            lines = [f"{self._config.out} is finished: {step:,} steps. {more}"]
            what = "this change had no effect"
        else:
            lines = [self._announcement(devices, cluster)]
            what = "changed since the run began"
        if changed:
            lines.append(f"{what}: {', '.join(changed)}")
        self._progress.say("\n".join(lines + notes))
        if is_finished:
            return
        if step > 0:
            self._log.write("event", step, event="resumed", changed=changed, notes=notes)
        self._progress.say("compiling the training step")

    def _announcement(self, devices: Parallel, cluster: Cluster) -> str:
        rows = self._rows
        data = self._config.data
        count = parameter_count(self._config)
        doing = "training"
        if self._first_step:
            doing = f"resuming at step {self._first_step:,} of"
        size = rows.corpus.manifest.splits["train"].bytes
        where = f"{devices.count} {devices.devices[0].platform} device(s)"
        if cluster.processes > 1:
            where += f" of {cluster.processes} processes"
        return (
            f"{doing} {rows.steps:,} steps, {rows.stream.epoch(rows.steps):.2f} epochs: {count:,} "
            f"parameters in {self._config.precision.compute} on {where}; run folder "
            f"{self._config.out}\neach step reads {data.batch} rows x {data.window} bytes, from "
            f"{size:,} bytes in {rows.stream.shards:,} shards"
        )

    def finish(self) -> None:
        """Report that the run has all its steps, unless its log says so already."""
        if self._log.last_event != "finished":
            step = max(self._first_step, self._rows.steps)
            self._log.write("event", step, event="finished")

    def restart_clock(self, step: int) -> None:
        """Measure the training rate from now and from `step` on; called after other work."""
        self._clock = time.monotonic()
        self._clock_step = step
        self._waited = 0.0

    def waited(self, seconds: float) -> None:
        """Add time in which the loop waited for the next batch."""
        self._waited += seconds

    def step(self, step: int, metrics: StepMetrics) -> None:
        """Report a step; Diverged after too many skips, or steps with a high loss, in a row."""
        train = self._config.train
        if step == self._first_step + 1:
            self.restart_clock(step)  # The first step includes compilation.
        bpc = float(metrics.loss) * BITS_PER_NAT
        self._high_steps += 1
        if bpc <= train.divergence_bpc:  # NaN is not.
            self._high_steps = 0
        skips = int(metrics.consecutive_skips)
        reason = None
        bad = 0
        if skips >= self._config.precision.max_consecutive_skips:
            bad = skips
            reason = (
                f"the last {skips} updates were skipped, because the loss or the gradient "
                f"contained inf or NaN (loss scale now {metrics.tally['loss_scale']:g})"
            )
        elif self._high_steps >= train.divergence_steps:
            bad = self._high_steps
            reason = (
                f"the training loss was above {train.divergence_bpc:g} bits per character "
                f"(`train.divergence_bpc`) for {bad} steps in a row, {bpc:.3g} at the last"
            )
        if reason or step % train.log_every == 0:
            self._write_line(step, metrics)
        if reason:
            raise self._diverged(step, reason, bad)

    def _diverged(self, step: int, reason: str, bad: int) -> Diverged:
        """Log a divergence that the last `bad` reports have shown; return the error.

        The report of a step is of the state before its update, so the first bad one, of step
        `step` − `bad` + 1, is of the state of one step earlier.
        """
        self._log.write("event", step, event="diverged", reason=reason)
        return Diverged(step, f"stopped at step {step}: {reason}.", max(0, step - bad - 1))

    def _write_line(self, step: int, metrics: StepMetrics) -> None:
        position = self._rows.position(step)
        seconds = max(time.monotonic() - self._clock, 1e-9)
        speed = math.nan  # no step since the clock has started
        if step > self._clock_step:
            # Padding and idle rows are no text.
            read = position["bytes_seen"] - self._rows.stream.bytes_seen(self._clock_step)
            speed = read / seconds
        line = line_of(metrics.tally, labels=self._config.model.labels > 0)
        self._log.write(
            "train",
            step,
            **position,
            **line,
            bytes_per_second=speed,
            data_wait_fraction=min(1.0, self._waited / seconds),
            seconds=self._log.seconds,
        )
        status = shown_of(line)
        if not math.isnan(speed):
            status.append(f"{file_size(speed)}/s")
        self._progress.update(step, "  ".join(status))
        self.restart_clock(step)

    def evaluation(self, step: int, score: Score) -> None:
        """Report the score of the validation split; Diverged if it is too high at the end."""
        epoch = self._rows.stream.epoch(step)
        said = f"step {step}  epoch {epoch:.2f}  validation bpc {score.bpc:.4f}"
        labels: dict[str, Any] = {}
        if score.label_loss is not None:
            labels = {"label_loss": score.label_loss, "accuracy": score.accuracy}
            said += f"  label loss {score.label_loss:.3f}  accuracy {score.accuracy:.3f}"
        self._log.write(
            "eval",
            step,
            **self._rows.position(step),
            loss=score.loss,
            bpc=score.bpc,
            bytes_scored=score.bytes_scored,
            **labels,
            evaluation_seconds=score.seconds,
            seconds=self._log.seconds,
        )
        self._progress.say(said)
        limit = self._config.train.divergence_bpc
        if step == self._rows.steps and not score.bpc <= limit:
            reason = (
                f"at the end the validation loss is {score.bpc:.3g} bits per character, above "
                f"{limit:g} (`train.divergence_bpc`)"
            )
            raise self._diverged(step, reason, self._high_steps)

    def interrupted(self, step: int, stop: float) -> Interrupted:
        """Report that signals of the summed weights `stop` stop the run; return their error."""
        which = strongest(stop)
        self._log.write("event", step, event="interrupted", signal=which.name)
        text = (
            f"stopped at step {step} of {self._rows.steps} with a checkpoint; the same command "
            "resumes from there."
        )
        return interruption(which, text, self._config)

    def meta(self, step: int, score: Score | None) -> Meta:
        """What a checkpoint at `step` was trained on, and its score if it was measured."""
        meta = meta_of(self._config, self._rows.corpus)._replace(
            **self._rows.position(step),
            start=self._meta.start,
            first_start=self._meta.first_start,
            high_steps=self._high_steps,
            metrics=self._log.extent(),
        )
        if score is not None:
            meta = meta._replace(bpc=score.bpc, label_loss=score.label_loss)
        return meta


def interruption(which: signal.Signals, text: str, config: Config) -> Interrupted:
    """The error after a signal that asked a run to stop."""
    # A scheduler that requested the stop should see it as a success.
    code = 130 if which is signal.SIGINT else config.train.sigterm_exit_code
    return Interrupted(f"{which.name}: {text}", which, code)
