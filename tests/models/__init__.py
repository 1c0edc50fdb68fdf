"""Small models in pure JAX, as one writes them by hand: forward pass, loss and training step.

Each file gives a :class:`Model`; :data:`MODELS` holds them all. They are small, but have what the
large ones have: batch norm with running statistics, a causal mask of -1e9, GELU, weight tying, a
recurrent scan, skip connections, name scopes.
"""

from tests.models.lstm import LSTM
from tests.models.model import Model
from tests.models.resnet import RESNET
from tests.models.transformer import TRANSFORMER
from tests.models.unet import UNET

MODELS: dict[str, Model] = {m.name: m for m in (RESNET, TRANSFORMER, LSTM, UNET)}

__all__ = ["LSTM", "MODELS", "RESNET", "TRANSFORMER", "UNET", "Model"]
