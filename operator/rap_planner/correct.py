"""A profile corrected by what training measured: steps and kernels that are slower or faster than profiled. Pure."""

from __future__ import annotations

from rap_contract.profile import Coefficients, Profile, Rates

MOST = 4.0  # a ratio beyond this or its inverse says that the profile is of something else: measure again instead


def corrected(profile: Profile, *, training: float = 1.0, preprocessing: float = 1.0) -> Profile:
    """The profile with its step `training` times as long and its kernels `preprocessing` times as slow.

    Ratios of measured over predicted, each held within MOST. Windows grow with the step; their leftovers stay.
    """
    step, kernels = (min(max(ratio, 1 / MOST), MOST) for ratio in (training, preprocessing))
    windows = [
        window.model_copy(update={"seconds": None if window.seconds is None else window.seconds * step})
        for window in profile.windows
    ]
    coefficients = profile.coefficients
    scaled = Coefficients(
        stages={stage: _scaled(rates, kernels) for stage, rates in coefficients.stages.items()},
        launches=tuple((stage, _scaled(rates, kernels)) for stage, rates in coefficients.launches),
        error_ratio=coefficients.error_ratio,
    )
    changes = {"step_seconds": profile.step_seconds * step, "windows": tuple(windows), "coefficients": scaled}
    return profile.model_copy(update=changes)


def _scaled(rates: Rates, ratio: float) -> Rates:
    narrow = rates.narrow
    changed = None
    if narrow is not None:
        changed = narrow.model_copy(
            update={
                "launch_seconds": narrow.launch_seconds * ratio,
                "seconds_per_byte": narrow.seconds_per_byte * ratio,
                "seconds_per_op": narrow.seconds_per_op * ratio,
                "ops": {name: rate * ratio for name, rate in narrow.ops.items()},
            }
        )
    return rates.model_copy(
        update={
            "launch_seconds": rates.launch_seconds * ratio,
            "seconds_per_byte": rates.seconds_per_byte * ratio,
            "seconds_per_op": rates.seconds_per_op * ratio,
            "ops": {name: rate * ratio for name, rate in rates.ops.items()},
            "narrow": changed,
        }
    )
