"""Settings of one optimizer: its half type, policy and loss scale, and the switch of the process.

The rewrite concerns every graph of the process, so all wrapped optimizers share its settings.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any, Self

from duotone.adapters import ENABLE
from duotone.adapters.tensorflow.rule import NONE, ScaleRule, data_of, rule_of
from duotone.devices.half_choice import HalfChoice, choose_half, cpu_flags
from duotone.errors import ArgumentError
from duotone.measuring.libraries import library
from duotone.policy.arguments import check_policy, half_named
from duotone.policy.plain_data import policy_data, policy_of
from duotone.policy.policy import Policy
from duotone.tensorflow.devices import OLDEST_FAST_CAPABILITY
from duotone.tensorflow.live import switch
from duotone.tensorflow.live.graphs import LiveSettings
from duotone.tensorflow.pipeline import rewrite
from duotone.tensorflow.protos import new_graph

logger = logging.getLogger("duotone")

_KEPT = f"*{switch.FLOAT32_SCOPE}*"


@dataclasses.dataclass(frozen=True, slots=True)
class WrapSettings:
    """The arguments of a wrapped optimizer, checked.

    Attributes:
        loss_scale: None for ``"dynamic"``.
        dtype: ``"float16"``, ``"bfloat16"``, or None for the choice of the device.
        policy: which operations may be painted.
        rewrite: whether graphs are rewritten; else the optimizer only scales the loss.
        half: the half type in use; None if nothing is rewritten.
    """

    loss_scale: ScaleRule | None
    dtype: str | None
    policy: Policy | None
    rewrite: bool
    half: str | None

    @classmethod
    def of(cls, loss_scale: Any, dtype: Any, policy: Any, rewrite: bool) -> Self:
        """Checks the arguments, also from the data that :meth:`data` made of them.

        Raises:
            ArgumentTypeError: an argument of the wrong type.
            ArgumentError: a value out of range.
        """
        policy = policy_of(policy)
        check_policy(ENABLE, policy)
        rule = rule_of(loss_scale)
        named = None if dtype is None else half_named(ENABLE, dtype)
        name = None if named is None else named.name
        off = not rewrite or (dtype is not None and named is None)
        return cls(rule, name, policy, not off, None if off else name or _of_device(policy))

    @property
    def rule(self) -> ScaleRule:
        """The loss scale in use: ``"dynamic"`` scales in float16 only."""
        if self.loss_scale is not None:
            return self.loss_scale
        return ScaleRule() if self.half == "float16" or not self.rewrite else NONE

    @property
    def initial(self) -> float:
        """The first value of the variable of the scale, which is the same for every half type."""
        return (self.loss_scale or ScaleRule()).initial

    @property
    def guards(self) -> bool:
        """True if steps whose gradients are not finite are skipped."""
        return self.rule.scales or self.half == "float16"

    def data(self) -> dict[str, Any]:
        """Returns the arguments as plain data, in the format of Keras optimizers on JAX."""
        return {
            "loss_scale": data_of(self.loss_scale),
            "dtype": self.dtype,
            "policy": policy_data(self.policy),
            "rewrite": self.rewrite,
        }

    def warn_of_dtypes(self, variables: Iterable[Any]) -> None:
        """Logs a line if none of the trained variables is float32: then nothing becomes half."""
        names = {getattr(variable.dtype, "name", variable.dtype) for variable in variables}
        if self.half is not None and names and not any("float32" in name for name in names):
            logger.warning(
                "the trained variables are %s, and duotone makes float32 operations %s: none of "
                "their computation is rewritten. Make the model in float32.",
                " and ".join(sorted(names)),
                self.half,
            )

    def switch_on(self) -> None:
        """Switches the rewrite of this process on.

        Raises:
            ArgumentError: another optimizer has switched it on with other settings.
            PolicyError: the policy names an unknown operation, or has a field for JAX programs.
            TensorFlowError: this TensorFlow does not call the plug-in.
        """
        if self.half is None:
            return
        policy = self.policy or Policy()
        rewrite(new_graph(), dtype=self.half, policy=policy.replace(keep_full=()))  # checks it
        kept = policy.replace(keep_full=(*policy.keep_full, _KEPT))
        wanted = LiveSettings(self.half, kept)
        current = switch.settings()
        if current is None:
            switch.enable(wanted)
        elif (current.dtype, current.policy) != (wanted.dtype, wanted.policy):
            raise ArgumentError(
                f"{ENABLE}: the graphs of this process are rewritten to {current.dtype} already, "
                f"with another dtype or policy than this optimizer asks for ({wanted.dtype}). A "
                "process has one rewrite: wrap all optimizers with the same dtype and policy, or "
                "call duotone.tensorflow.disable_mixed_precision_graph_rewrite() first."
            )


def _of_device(policy: Policy | None) -> str | None:
    """Returns the half type that is fast here; logs a warning if there is none."""
    choice = choose_for(library("tensorflow", ENABLE, "tensorflow"))
    if choice.dtype is not None:
        return choice.dtype
    if (policy or Policy()).merged_with_environment().ignore_performance:
        return "bfloat16"
    logger.warning(
        "graphs are not rewritten, half is not faster here: %s. "
        "Policy(ignore_performance=True) or dtype=... rewrites them anyway.",
        choice.reason,
    )
    return None


def choose_for(tf: Any) -> HalfChoice:
    """Chooses the half type: on GPUs float16, for which TensorFlow has kernels, as its own pass."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return choose_half("cpu", cpu_flags=cpu_flags())
    details = tf.config.experimental.get_device_details(gpus[0])
    capability = details.get("compute_capability", (0, 0))
    shown = ".".join(map(str, capability))
    if tuple(capability) >= OLDEST_FAST_CAPABILITY:
        return HalfChoice("float16", f"compute capability {shown} has float16 Tensor Cores")
    return HalfChoice(None, f"compute capability {shown} has no Tensor Cores")
