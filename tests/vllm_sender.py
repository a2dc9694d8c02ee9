"""Drive vLLM's own NCCL sender with our client and our source, its broadcast replaced by a list.

Run by `test_weight_sync.py` in a process of its own, since importing vLLM patches torch:
    python -m tests.vllm_sender MODEL_FOLDER
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerInitInfo,
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferInitInfo,
    NCCLWeightTransferUpdateInfo,
)

from learners import weight_sync
from learners.weight_sync import PolicySource, RunnerClient, TransferGroup
from tests.rows import learner_config, make_policy
from tests.test_weight_sync import FakeRunner


def main(folder: Path) -> None:
    weight_sync.ray.get = lambda replies: replies
    torch.cuda.current_stream = lambda device=None: None  # type: ignore[assignment, return-value]
    runners = FakeRunner(), FakeRunner()
    group = TransferGroup("127.0.0.1", 29999, runners, 1)
    client = RunnerClient(group)
    assert isinstance(client, VLLMWeightSyncClient)
    # The fields that `WeightSender` and vLLM's `trainer_init` fill in exist.
    address = {"master_address": group.address, "master_port": group.port, "world_size": group.world_size}
    NCCLTrainerInitInfo(rank=0, **address)
    NCCLWeightTransferInitInfo(rank_offset=group.rank_offset(1), **address)

    policy = make_policy(learner_config(folder))
    engine = NCCLTrainerWeightTransferEngine(client=client, source=PolicySource(policy, torch.bfloat16), packed=False)
    sent: list[torch.Tensor] = []
    engine.model_update_group = SimpleNamespace(broadcast=lambda tensor, src, stream: sent.append(tensor.clone()))
    client.version = 5
    engine.send_weights()
    for runner in runners:
        check(runner.calls, sent, dict(policy.model.named_parameters()))


def check(calls: list[tuple[str, tuple]], sent: list[torch.Tensor], parameters: dict[str, Any]) -> None:
    start, (method, (announced,)), finish = calls
    assert (start, method, finish) == (("start_weight_update", ()), "update_weights", ("finish_weight_update", (5,)))
    info = NCCLWeightTransferUpdateInfo(**announced)
    assert [list(tensor.shape) for tensor in sent] == info.shapes
    assert set(info.dtype_names) == {"bfloat16"}
    received = dict(zip(info.names, sent, strict=True))
    assert received.keys() == parameters.keys()
    for name, parameter in parameters.items():
        torch.testing.assert_close(received[name], parameter.detach().to(torch.bfloat16))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
