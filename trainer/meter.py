"""What a step's log line holds: losses, learning rate, gradient norm, speed."""

import time

import jax

from trainer.flops import CONVENTION, Peak, training_flops_per_token
from trainer.rundir import Run
from trainer.schedule import Schedule
from trainer.update import Measures

__all__ = ["Meter"]


class Meter:
    """Turns the measures of updates into named values.

    Args:
        run: what is trained.
        schedule: learning rate of each step.
        peak: what one device could do.
        devices: devices at work.
    """

    def __init__(self, run: Run, schedule: Schedule, peak: Peak, devices: int) -> None:
        self._schedule = schedule
        self._tokens = run.settings.tokens_per_step
        self._instances = run.settings.batch_instances
        flops = training_flops_per_token(run.model, run.settings.sequence_length)
        self._peak, self._devices = peak, devices
        self._fraction_per_speed = flops / (peak.flops_per_second * devices)
        self._began = time.perf_counter()

    @property
    def facts(self) -> dict[str, str | float]:
        """Return what MFU means in this segment, and how many devices share the work."""
        return {
            "mfu_convention": CONVENTION,
            "peak_flops_per_second": self._peak.flops_per_second * self._devices,
            "peak_source": self._peak.source,
            "devices": self._devices,
        }

    def restart(self) -> None:
        """Start the clock of the next step."""
        self._began = time.perf_counter()

    def read(self, step: int, measures: Measures) -> dict[str, float]:
        """Wait for an update and return its values; ``step`` is 1-based.

        Of a batch whose instances were all masked there is no loss to tell.
        """
        found = jax.device_get(measures)
        values: dict[str, float] = {}
        if found.kept_instances > 0:
            values = {
                "train/ce_nats": float(found.ce_nats),
                "train/z_nats": float(found.z_nats),
            }
        values |= {
            "optim/lr": self._schedule.at(step),
            "optim/grad_norm": float(found.grad_norm),
            "optim/grad_norm_clipped": float(found.grad_norm_clipped),
            "optim/step_skipped": float(found.skipped),
        }
        if found.kept_instances < self._instances:
            values["data/masked_instances"] = float(self._instances - found.kept_instances)
        speed = self._tokens / (time.perf_counter() - self._began)
        self.restart()
        values["throughput/tokens_per_second"] = speed
        values["throughput/mfu"] = speed * self._fraction_per_speed
        return values
