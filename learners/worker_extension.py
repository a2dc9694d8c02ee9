"""What the sampler adds to vLLM's worker: taking the learner's weights. Named to vLLM as `worker_extension_cls`.

vLLM mixes the class into its own worker, so that the methods run wherever the workers are, also under tensor
parallelism; `Engine.call_workers` reaches them. Importable without vLLM.
"""

from collections.abc import Iterable
from typing import Any

import torch

QUALIFIED_NAME = "learners.worker_extension.WeightUpdateExtension"


class WeightUpdateExtension:
    """Mixed into vLLM's worker; `model_runner`, `vllm_config` and the weight-transfer methods are the worker's own."""

    model_runner: Any
    vllm_config: Any

    def load_policy_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load every parameter, under `transformers` names, into the running model.

        Raises:
            ValueError: naming parameters that did not arrive. (vLLM itself only warns, and goes on with a mixture.)
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        model = self.model_runner.get_model()
        expected = {name for name, _ in model.named_parameters()}
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            initialize_layerwise_reload(model)
            loaded = model.load_weights(weights)
            finalize_layerwise_reload(model, self.vllm_config.model_config)
        missing = sorted(expected - set(loaded))
        if missing:
            raise ValueError(
                f"The new weights lack {len(missing)} of the engine's {len(expected)} parameters, e.g. {missing[:3]}. "
                f"Send every parameter of the `transformers` model under its own name."
            )
        self.refresh_tied_head()

    def refresh_tied_head(self) -> None:
        """Re-pack the head's weights where embeddings are tied and packed (CPU).

        The CPU backend multiplies with a packed copy of a linear layer's weight, made after loading. A reload re-makes
        it per layer as its weights arrive, but a learner that sends each parameter once sends none for a tied head:
        they are the embedding's. Without this the logits stay those of the old weights (measured with vLLM 0.32).
        """
        for module in self.model_runner.get_model().modules():
            if type(module).__name__ == "ParallelLMHead" and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)
