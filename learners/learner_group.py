"""`LLMLearnerGroup`: everything runs on all learners at once, and any failure raises in the driver.

RLlib's own group asks one learner for the state (with sharded parameters the gather then waits for the others for
ever) and saves a checkpoint without looking at whether the learner failed.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable

from learners.batching import RowRef, plan_update
from learners.update_figures import UpdateResult

logger = logging.getLogger(__name__)

# After one learner failed the others get this long to fail or finish too; one that still runs waits in a collective for
# the dead one, and would for half an hour.
_GRACE_S = 10.0


class LLMLearnerGroup(LearnerGroup):
    """The learners of one policy: `num_learners` FSDP ranks, or one in the driver's process for `num_learners=0`."""

    _is_shut_down: bool

    def update_rows(self, rows: Sequence[RowRef], *, minibatch_size: int, seed: int | Sequence[int]) -> UpdateResult:
        """Update the policy from rows in the object store.

        Args:
            rows: Rows that count, of all groups.
            minibatch_size: Rows per optimizer step at most; 0 means all.
            seed: Of the split into mini-batches.

        Returns:
            Metrics over all learners, and every row's log-probs.

        Raises:
            ValueError, RuntimeError, FloatingPointError: see `LLMLearner.update_rows`.
        """
        config = self.config
        plans = plan_update(
            rows,
            num_ranks=max(1, config.num_learners),
            minibatch_size=minibatch_size,
            max_tokens_per_micro_batch=config.max_tokens_per_micro_batch,
            seed=seed,
            train_all=config.kl_coeff > 0 or config.entropy_coeff > 0,
        )
        results: list[UpdateResult] = self.on_all("update_rows", per_learner=plans)
        logp = {row_id: values for result in results for row_id, values in result.logp.items()}
        return UpdateResult(results[0].metrics, logp)

    def weights(self) -> ray.ObjectRef:
        """Return a reference to `{transformers name: tensor}`, whole and in `dtype`, adapters merged."""
        [reference] = [ref for refs in self.on_all("weights") for ref in refs]
        return reference

    def export_hf(self, path: str | Path) -> None:
        """Write a Hugging Face folder (on the first learner's machine): weights, configuration, tokenizer."""
        self.on_all("export_hf", str(Path(path).absolute()))

    @override(LearnerGroup)
    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the whole state.

        RLlib asks for `inference_only` state to push it to EnvRunners. They get none: their engines get new weights
        from `learners.weight_sync` alone, versioned and whole.
        """
        if not self._check_component(COMPONENT_LEARNER, components, not_components):
            return {}
        if kwargs.get("inference_only"):
            return {COMPONENT_LEARNER: {COMPONENT_RL_MODULE: {}}}
        return {
            COMPONENT_LEARNER: self.on_all(
                "get_state",
                components=self._get_subcomponents(COMPONENT_LEARNER, components),
                not_components=self._get_subcomponents(COMPONENT_LEARNER, not_components),
            )[0]
        }

    @override(LearnerGroup)
    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        if COMPONENT_LEARNER in state:
            learner_state = state[COMPONENT_LEARNER]
            # As a top-level argument the learners get the value itself, and each node one copy of it.
            self.on_all("set_state", learner_state if self.is_local else ray.put(learner_state))

    @override(Checkpointable)
    def save_to_path(self, path: Any = None, *, state: Any = None, filesystem: Any = None, **kwargs: Any) -> str:
        """Write a checkpoint, each learner its own shards, or the given whole `state`.

        Args:
            path: Folder that the machines of all learners see.
            state: What `get_state` returned, to write instead (`Algorithm.save_to_path` gathers it and passes it on).
            filesystem: Any for a `state`; a local one for shards.

        Raises:
            ValueError: if shards are to be written elsewhere.
        """
        if state is not None:
            return super().save_to_path(path, state=state, filesystem=filesystem, **kwargs)
        folder = _local(path, filesystem)
        if folder is None:
            raise ValueError(
                f"Learners write their shards to a local or shared folder. Received {path!r} on {filesystem!r}; give "
                f"the whole `state`, or save to a folder and upload it, as Tune does."
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.on_all("save_to_path", str(folder / COMPONENT_LEARNER))
        return str(folder)

    @override(Checkpointable)
    def restore_from_path(
        self, path: Any, *, component: str | None = None, filesystem: Any = None, **kwargs: Any
    ) -> None:
        """Restore a checkpoint on all learners, whatever their number when it was saved.

        Raises:
            ValueError: if only a component is asked for: parameters and their Adam state belong together.
        """
        if component is not None:
            raise ValueError(f"Only the whole checkpoint can be restored. Received `component` {component!r}.")
        shards = _local(path, filesystem)
        if shards is not None and (shards / COMPONENT_LEARNER).is_dir():
            self.on_all("restore_from_path", str(shards / COMPONENT_LEARNER))
        else:  # a whole state, on any file system
            super().restore_from_path(path, filesystem=filesystem, **kwargs)

    @override(LearnerGroup)
    def get_checkpointable_components(self) -> list[tuple[str, Checkpointable]]:
        """Return none: what is saved or restored is the learners' state as a whole."""
        return []

    def on_all(self, method: str, *args: Any, per_learner: Sequence[Any] | None = None, **kwargs: Any) -> list[Any]:
        """Call a method on all learners and return their results by rank.

        Args:
            method: Name of a method of `LLMLearner`.
            args: The same for all; so are `kwargs`.
            per_learner: A first argument of each learner's own.

        Raises:
            Exception: what the first failing learner raised. Learners that then wait for it in vain are killed.
        """
        first = [(value,) for value in per_learner] if per_learner is not None else [()] * max(1, len(self))
        if self.is_local:
            return [getattr(self._learner, method)(*first[0], *args, **kwargs)]
        refs = [
            getattr(worker, method).remote(*own, *args, **kwargs)
            for worker, own in zip(self._workers, first, strict=True)
        ]
        try:
            # Raises as soon as one of them has failed.
            return ray.get(refs)
        except Exception:
            self._kill_stuck(refs)
            raise

    @override(LearnerGroup)
    def shutdown(self) -> None:
        """End all learners and wait until they are gone.

        (Ray Train waits for the first of its workers only and kills the rest while they exit, which the cluster then
        reports as a crash.)
        """
        if self.is_local or self._is_shut_down or not hasattr(self, "_backend_executor"):
            super().shutdown()
            return
        self._is_shut_down = True
        if ray.is_initialized():
            for method in ("shutdown", "__ray_terminate__"):
                refs = [getattr(worker, method).remote() for worker in self._workers]
                ray.wait(refs, num_returns=len(refs), timeout=_GRACE_S)
            self._backend_executor.shutdown(graceful_termination=False)

    def _kill_stuck(self, refs: list[ray.ObjectRef]) -> None:
        _, running = ray.wait(refs, num_returns=len(refs), timeout=_GRACE_S)
        if running:
            logger.error("%d learners wait for one that failed and are killed.", len(running))
            for worker in self._workers:
                ray.kill(worker)


def _local(path: Any, filesystem: Any) -> Path | None:
    """Return the path if it is on a local file system."""
    if filesystem is None and "://" in str(path):
        filesystem, path = pyarrow.fs.FileSystem.from_uri(str(path))
    is_local = filesystem is None or isinstance(filesystem, pyarrow.fs.LocalFileSystem)
    return Path(path).absolute() if is_local else None
