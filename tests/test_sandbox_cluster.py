"""The sandbox's application on a cluster of two nodes."""

import asyncio

import pytest

from torl_env.sandbox import deployment
from torl_env.sandbox.deployment import SERVE_ENVIRONMENT, ServeSandbox, sandbox_stats, start_sandbox, stop_sandbox


@pytest.mark.slow
def test_replicas_come_and_go_on_two_nodes_without_losing_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in SERVE_ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(deployment, "_MAX_REPLICAS_PER_NODE", 1)
    monkeypatch.setattr(deployment, "_UPSCALE_DELAY_S", 1.0)
    monkeypatch.setattr(deployment, "_DOWNSCALE_DELAY_S", 2.0)
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.state import list_actors

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": True})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="warning")
    try:
        assert start_sandbox("two", num_replicas="auto", max_concurrent_runs=1)
        client = ServeSandbox("two")

        async def replicas_become(number: int) -> None:
            while (await asyncio.to_thread(sandbox_stats, "two")).num_replicas != number:
                await asyncio.sleep(0.5)

        async def load() -> tuple[list[str], set[str]]:
            code = "import time\ntime.sleep(0.2)\nprint({})"
            calls = [asyncio.create_task(client.run(code.format(i), 10)) for i in range(60)]
            await replicas_become(2)
            actors = await asyncio.to_thread(list_actors, filters=[("state", "=", "ALIVE")])
            nodes = {actor.node_id for actor in actors if actor.class_name.startswith("ServeReplica:two")}
            results = await asyncio.gather(*calls)
            await replicas_become(1)
            return [result.stdout for result in results], nodes

        outputs, nodes = asyncio.run(asyncio.wait_for(load(), 280))
        assert outputs == [f"{i}\n" for i in range(60)]
        assert len(nodes) == 2
        stop_sandbox("two")
    finally:
        ray.shutdown()
        cluster.shutdown()
