"""What a step's log line holds: losses, learning rate, gradient norm, speed."""

import time

from trainer.flops import CONVENTION, Peak, training_flops_per_token
from trainer.rundir import Run
from trainer.schedule import CosineWithWarmup
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

    def __init__(self, run: Run, schedule: CosineWithWarmup, peak: Peak, devices: int) -> None:
        self._schedule = schedule
        self._tokens = run.settings.tokens_per_step
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
        """Wait for an update and return its values; ``step`` is 1-based."""
        values = {
            "train/ce_nats": float(measures.ce_nats),
            "train/z_nats": float(measures.z_nats),
            "optim/lr": float(self._schedule(step)),
            "optim/grad_norm": float(measures.grad_norm),
        }
        speed = self._tokens / (time.perf_counter() - self._began)
        self.restart()
        values["throughput/tokens_per_second"] = speed
        values["throughput/mfu"] = speed * self._fraction_per_speed
        return values
