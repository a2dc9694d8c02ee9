"""ToRL on RLlib: the Algorithm, the vLLM EnvRunner and the FSDP2 Learner.

Importing this package switches the usage statistics of Ray, vLLM, the model hub and the trackers off, unless the user
has set the variables: they are read when a cluster or an engine starts, some already at import, and workers inherit
them.
"""

import os

for _variable, _value in {
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",  # MLflow's, and others'
    "WANDB_ERROR_REPORTING": "false",
}.items():
    os.environ.setdefault(_variable, _value)
