"""The training loop."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from tqdm import tqdm

from evalmon.errors import DataError, EvalmonError, TrainingError, WriteError
from trainer.checkpoint import Checkpoints, load_start
from trainer.data.id_log import IdLogWriter, id_records
from trainer.data.loaders import find_loader
from trainer.data.pipeline import ReadPlan, global_batches
from trainer.data.repetition import find_filter
from trainer.distributed import gather_records, is_first, of_first, written_by_first
from trainer.flops import find_peak
from trainer.meter import Meter
from trainer.progress import Progress
from trainer.rundir import Run
from trainer.runlog import RunLog
from trainer.sharding import place, place_batch, placed_shapes
from trainer.update import (
    OptimizerState,
    TrainState,
    abstract_state,
    compile_update,
    fresh_state,
    update_rule,
)
from trainer.writers import Writer

__all__ = ["train"]


def train(
    run: Run,
    *,
    resume: bool = False,
    writers: Sequence[Writer] = (),
    clock: Callable[[], float] = time.time,
) -> str:
    """Train to the end of the schedule, or until a file ``STOP`` appears in the run directory.

    Args:
        run: the run directory.
        resume: go on from the last committed checkpoint, from step 0 if there is none.
        writers: where values go beside the log; they are closed at the end.
        clock: seconds since 1970, for the log.

    Returns:
        ``completed`` or ``stopped``; either way the last step has a committed checkpoint.

    Raises:
        TrainingError: a loss or gradient is not finite.
        WriteError: a file or checkpoint cannot be written.
        CheckpointError: a checkpoint to go on or start from cannot be read, or does not fit.
        ConfigError: the devices are not those that the settings ask for.
        DataError: the loader ran out of instances.
    """
    path, mesh = run.description.path, run.mesh()
    try:
        with (
            contextlib.ExitStack() as closing,
            jax.set_mesh(mesh),
            RunLog(written_by_first(path / "log.jsonl"), clock) as log,
            IdLogWriter(written_by_first(path / "ids.bin")) as ids,
            Checkpoints(path / "checkpoints", run.stacked) as checkpoints,
        ):
            for writer in writers:
                closing.callback(writer.close)
            session = _Session(run, mesh, log, ids, checkpoints, writers)
            return session.train(resume=resume)
    except OSError as error:
        raise WriteError(
            f"{path}: cannot be written ({error}); free some space, then go on with --resume"
        ) from error


class _Session:
    """One segment of a run: its open files and how far it is."""

    def __init__(
        self,
        run: Run,
        mesh: Mesh,
        log: RunLog,
        ids: IdLogWriter,
        checkpoints: Checkpoints,
        writers: Sequence[Writer],
    ) -> None:
        self.run, self.mesh, self.log, self.ids = run, mesh, log, ids
        self.checkpoints, self.writers = checkpoints, writers
        self.done: Progress = {"step": 0, "tokens": 0, "position": 0}

    def train(self, *, resume: bool) -> str:
        """Run the loop; whatever ends it, what is pending is committed and the end is logged."""
        try:
            reason = self._update_until_end(resume=resume)
            self._log_committed(self.checkpoints.wait())
        except (EvalmonError, OSError) as error:
            with contextlib.suppress(EvalmonError, OSError):
                self._log_committed(self.checkpoints.wait())
            with contextlib.suppress(OSError):
                self.log.end(self.done["step"], self.done["tokens"], "failed", str(error))
            raise
        self.log.end(self.done["step"], self.done["tokens"], reason)
        return reason

    def _update_until_end(self, *, resume: bool) -> str:
        """Make the updates; return why there are no more."""
        settings, stop = self.run.settings, self.run.description.path / "STOP"
        if resume and is_first():
            stop.unlink(missing_ok=True)
        # A run killed before its first commit starts over: its seed gives the same state.
        resumed = resume and self.checkpoints.latest is not None
        state = self._first_state(resumed=resumed)
        rule = update_rule(settings, self.run.description.eos_id)
        meter = Meter(self.run, rule.schedule, find_peak(), self.mesh.size)
        self.log.start(self.done["tokens"], self.done["step"] if resumed else None, meter.facts)
        for writer in self.writers:
            writer.start(self.done["step"])
        if not resumed:
            self.checkpoints.save(state, self.done)
        update = compile_update(self.run, state, self.mesh)
        plan = self._plan()
        batches = global_batches(plan, find_loader(settings.loader).build)
        with (
            contextlib.closing(batches),
            tqdm(
                initial=self.done["step"],
                total=settings.steps,
                desc=self.run.description.name,
                unit="step",
                disable=None if is_first() else True,
            ) as bar,
        ):
            meter.restart()
            for batch in batches:
                now = self._after(plan)
                self.ids.append(gather_records(id_records(now["step"], batch)))
                inputs = [place_batch(batch.tokens, self.mesh), np.int32(now["step"])]
                if batch.kept is not None:
                    inputs.append(place_batch(batch.kept, self.mesh))
                state, measures = update(state, *inputs)
                values = meter.read(now["step"], measures)
                self.log.step(now["step"], now["tokens"], values)
                for writer in self.writers:
                    writer.write(now["step"], now["tokens"], values)
                _require_finite(now["step"], values)
                self.done = now
                stopped = of_first(stop.exists())
                if now["step"] % settings.checkpoint_every == 0 or stopped or self._complete:
                    self._log_committed(self.checkpoints.save(state, now))
                self._log_committed(self.checkpoints.poll())
                bar.set_postfix(ce=f"{values.get('train/ce_nats', math.nan):.3f}", refresh=False)
                bar.update()
                if stopped and not self._complete:
                    return "stopped"
        if not self._complete:
            raise DataError(
                f"loader {settings.loader!r} ended after step {self.done['step']} of "
                f"{settings.steps}; give more instances"
            )
        return "completed"

    def _first_state(self, *, resumed: bool) -> TrainState:
        """Return the state that the segment begins with, on its devices."""
        settings, start = self.run.settings, self.run.start
        if resumed:
            shapes = abstract_state(self.run.model, settings.execution)
            state, self.done = self.checkpoints.restore(placed_shapes(shapes, self.mesh))
            if self.done["step"] in self.run.description.data_changes:
                self.done["position"] = 0  # other data from here on, read from its beginning
            return state
        state = place(fresh_state(self.run.model, settings.execution, settings.seed), self.mesh)
        if start is not None:
            moments = settings.init_optimizer
            found = load_start(start, state, with_optimizer=moments, stacked=self.run.stacked)
            # Spikes are judged against the new run's own values.
            optimizer = OptimizerState(found.optimizer.adam, state.optimizer.history)
            state = TrainState(found.params, optimizer)
        return state

    @property
    def _complete(self) -> bool:
        """Whether the schedule has been run to its end."""
        return self.done["step"] >= self.run.settings.steps

    def _after(self, plan: ReadPlan) -> Progress:
        """Return the progress after one more update."""
        size = plan.batch_instances
        return {
            "step": self.done["step"] + 1,
            "tokens": self.done["tokens"] + self.run.settings.tokens_per_step,
            "position": plan.global_order.after(self.done["position"], 1, size),
        }

    def _plan(self) -> ReadPlan:
        """Return what is left to read."""
        settings = self.run.settings
        return ReadPlan(
            source=self.run.source,
            seed=settings.seed,
            batch_instances=settings.batch_instances,
            hosts=settings.hosts,
            position=self.done["position"],
            batches=settings.steps - self.done["step"],
            order=settings.order,
            workers=settings.workers,
            instance_filter=find_filter(settings.instance_filter),
            order_dir=self.run.description.path / "order",
            process=jax.process_index(),
            processes=jax.process_count(),
        )

    def _log_committed(self, committed: Iterable[Progress]) -> None:
        """Log checkpoints that are on disk for good."""
        for progress in committed:
            self.log.checkpoint(progress["step"], progress["tokens"])


def _require_finite(step: int, values: dict[str, float]) -> None:
    """Raise when a value of a step is infinite or not a number."""
    wrong = [name for name, value in values.items() if not math.isfinite(value)]
    if wrong:
        raise TrainingError(
            f"step {step}: {', '.join(wrong)} is not finite; all checkpoints are from before it. "
            "Lower --learning-rate, or look at the step's instances in ids.bin"
        )
