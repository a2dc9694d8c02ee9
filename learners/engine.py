"""The vLLM engine of one sampler: token ids in, token ids and their log-probs out, new weights between steps.

One thread owns the engine. It builds it (so that the actor that holds it is up at once and other parts can start
meanwhile), and then alternates: take every command that has arrived (submit, weights, pause, stop), make one engine
step, hand out what finished. So a caller is never blocked by a step, a step never waits for a caller, and no lock is
needed around vLLM, which has none.

What can go wrong with one request is a value (`Generation.error`); a step that raises leaves vLLM in an unknown
state, so it ends all running requests with that error and refuses later ones.
"""

import itertools
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from learners.generation import Backend, EngineConfig, EngineStats, Generation, GenerationRequest

if TYPE_CHECKING:
    import torch


class Engine:
    """A vLLM engine on a thread of its own.

    Args:
        config: What to build.
        build: Builds the backend, on the engine's thread; the default is vLLM.

    Attributes:
        ready: Done once requests are served; raises what the building raised. Submitting before is fine.
    """

    def __init__(self, config: EngineConfig, build: Callable[[EngineConfig], Backend] | None = None) -> None:
        self.ready: Future[None] = Future()
        self._config = config
        self._build = build or _build_vllm
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._running: dict[str, Future[Generation]] = {}
        self._ids = itertools.count()
        self._paused = False
        self._failure: str | None = None
        self._num_steps = 0
        self._busy_s = 0.0
        self._token_counts = (0, 0, 0)
        self._backend: Backend | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def policy_version(self) -> int:
        """Version of the weights in use; 0 are those of the model's folder."""
        return self._backend.policy_version if self._backend is not None else 0

    @property
    def failure(self) -> str | None:
        """Traceback of what ended the engine, None while it works."""
        return self._failure

    def submit(self, request: GenerationRequest) -> "Future[Generation]":
        """Sample one turn. Cancelling the future aborts the request."""
        future: Future[Generation] = Future()
        self._put(lambda: self._add(request, future))
        return future

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int) -> "Future[None]":
        """Replace all weights, between two steps and while no request is running, and reset the prefix cache.

        Args:
            weights: Every parameter of the model under its `transformers` name.
            version: The new `policy_version`.

        Raises (in the future):
            RuntimeError: if requests are running: their tokens would come from two policies.
            ValueError: if parameters are missing or unknown. After this and any other failure of the change itself the
                engine refuses to sample.
        """
        what = f"load_weights(version={version})"
        return self._command(lambda backend: self._change(what, lambda: backend.load_weights(weights, version)))

    def call_workers(self, method: str, **kwargs: Any) -> "Future[list[Any]]":
        """Call a method of vLLM's workers that is a step of its weight transfer; errors are those of `load_weights`."""
        return self._command(lambda backend: self._change(method, lambda: backend.call_workers(method, kwargs)))

    def finish_weight_update(self, version: int) -> "Future[None]":
        """End a weight transfer begun by `call_workers("start_weight_update")`; the weights are now `version`."""
        what = f"finish_weight_update(version={version})"
        return self._command(lambda backend: self._change(what, lambda: backend.finish_weight_update(version)))

    def pause(self) -> "Future[None]":
        """Make no steps from now on; requests are kept."""
        return self._command(lambda backend: self._set_paused(True))

    def resume(self) -> "Future[None]":
        """Go on after `pause`."""
        return self._command(lambda backend: self._set_paused(False))

    def stats(self) -> EngineStats:
        """Return the counters, from any thread."""
        num_threads = self._backend.num_threads if self._backend is not None else 0
        return EngineStats(*self._token_counts, self._num_steps, self._busy_s, num_threads)

    def stop(self) -> None:
        """End running requests with an error, free the engine and wait for its thread. May be called twice.

        A build cannot be interrupted and takes long, so nobody waits for one: the thread ends by itself after it.
        """
        self._put(None)
        if self.ready.done():
            self._thread.join()

    def _put(self, command: Callable[[], None] | None) -> None:
        with self._closing:
            if not self._closed:
                self._commands.put(command)
                return
        if command is not None:
            command()  # the thread is gone; the command finds `_failure` and answers with it

    # Everything below runs on the engine's thread.

    def _run(self) -> None:
        try:
            self._backend = self._build(self._config)
        except BaseException as error:
            self._fail(f"The engine could not be built:\n{traceback.format_exc()}")
            self.ready.set_exception(error)
        else:
            self.ready.set_result(None)
        try:
            while self._take_commands():
                if self._running and not self._paused:
                    self._step()
        except BaseException:
            # A step, or what else it was: somebody waits for an answer that only this thread can give.
            self._fail(f"The engine's thread failed:\n{traceback.format_exc()}")
        self._fail("The engine was stopped.")
        with self._closing:
            self._closed = True
        while not self._commands.empty():
            if (command := self._commands.get()) is not None:
                command()
        if self._backend is not None:
            self._backend.close()

    def _take_commands(self) -> bool:
        """Execute all commands that have arrived, waiting for one if there is nothing to step; False at the stop."""
        while True:
            idle = self._paused or not self._running
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _step(self) -> None:
        assert self._backend is not None
        start = time.perf_counter()
        try:
            finished = self._backend.step()
        finally:
            self._busy_s += time.perf_counter() - start
            self._num_steps += 1
            self._token_counts = self._backend.token_counts()
        for request_id, generation in finished:
            if (future := self._running.pop(request_id, None)) is not None:
                _resolve(future, generation)

    def _add(self, request: GenerationRequest, future: "Future[Generation]") -> None:
        if self._failure is not None or self._backend is None:
            _resolve(future, self._error(self._failure or "The engine was not built."))
            return
        if future.cancelled():
            return
        request_id = str(next(self._ids))
        self._running[request_id] = future
        try:
            self._backend.add(request_id, request)
        except Exception as error:
            del self._running[request_id]
            _resolve(future, self._error(f"{type(error).__name__}: {error}"))
            return
        future.add_done_callback(lambda done: self._abort_if_cancelled(request_id, done))

    def _abort_if_cancelled(self, request_id: str, future: "Future[Generation]") -> None:
        if future.cancelled():
            self._put(lambda: self._abort(request_id))

    def _abort(self, request_id: str) -> None:
        if self._running.pop(request_id, None) is not None and self._backend is not None:
            self._backend.abort(request_id)

    def _change(self, what: str, change: Callable[[], Any]) -> Any:
        """Make a change to the weights."""
        if self._running:
            raise RuntimeError(
                f"{what} was called while {len(self._running)} requests were running: their tokens would come from two "
                f"policies. Wait for them or cancel them first."
            )
        try:
            return change()
        except Exception:
            # Some parameters are new and some old now, or the cache is that of the old ones: no policy at all.
            self._fail(f"{what} failed:\n{traceback.format_exc()}")
            raise

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused

    def _command(self, execute: Callable[[Backend], Any]) -> "Future[Any]":
        """Queue a call and return its future (called from any thread)."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                if self._failure is not None or self._backend is None:
                    raise RuntimeError(self._failure or "The engine was not built.")
                result = execute(self._backend)
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                future.set_result(result)

        self._put(run)
        return future

    def _fail(self, failure: str) -> None:
        self._failure = self._failure or failure
        running, self._running = self._running, {}
        for future in running.values():
            _resolve(future, self._error(failure))

    def _error(self, text: str) -> Generation:
        return Generation.failed(text, self.policy_version)


def _resolve(future: "Future[Generation]", generation: Generation) -> None:
    # The waiting side may cancel at any moment; from here on it cannot.
    if future.set_running_or_notify_cancel():
        future.set_result(generation)


def _build_vllm(config: EngineConfig) -> Backend:
    from learners.vllm_backend import VLLMBackend

    return VLLMBackend(config)
