"""Comparisons in processes that a launcher started (srun, mpirun, or by hand on each host).

The processes are used as they are.

Each of them calls ``connect`` first, before anything else uses JAX (tracing a model does), and then
``tl.compare(..., devices="distributed")`` with the same arguments; the command ``toast-lab
compare`` does both. ``jax.distributed.initialize`` finds the coordinator, the number of processes
and the rank by itself under SLURM, Open MPI and on TPU pods; elsewhere it takes them from
JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.

There are no child processes: a launched process owns its devices, and if it dies, its launcher ends
the whole job. An error that JAX raises still costs only its own plan, in all processes, since they
exchange their outcomes after every command.
"""

from __future__ import annotations

import gc
import os
import pickle
from typing import Any

import numpy as np

from toast_lab.compare.contender import Contender, ContenderRequest
from toast_lab.compare.measure import Clock
from toast_lab.errors import InvalidProblem, RunFailed, ToastError

_COORDINATOR, _COUNT, _INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def connect() -> None:
    """Join the other processes, unless this process has already joined them.

    Raises:
        InvalidProblem: neither JAX nor the environment variables tell where they are.
    """
    import jax

    if jax.distributed.is_initialized():
        return
    # Several processes need it for collectives on CPUs; accelerators ignore it.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    given: dict[str, Any] = {}
    if os.environ.get(_COUNT):  # of the three, JAX reads only the coordinator
        missing = [name for name in (_COORDINATOR, _INDEX) if not os.environ.get(name)]
        if missing:
            raise InvalidProblem(
                f'devices="distributed": {_COUNT} is set, but not {" or ".join(missing)}'
            )
        given = {"num_processes": int(os.environ[_COUNT]), "process_id": int(os.environ[_INDEX])}
    try:
        jax.distributed.initialize(**given)
    except (ValueError, RuntimeError) as error:
        raise InvalidProblem(
            f'devices="distributed": {str(error).splitlines()[0]} Start one process for each host '
            f"or device with srun or mpirun, or set {_COORDINATOR} (host:port), {_COUNT} and "
            f"{_INDEX}; connect before anything else uses JAX. For processes of this machine alone "
            "use processes=N."
        ) from None


def attached(count: int) -> list[Any]:
    """The first ``count`` devices of all processes, in JAX's order.

    Raises:
        InvalidProblem: there are fewer devices, or some processes own none of them.
    """
    import jax

    devices = jax.devices()
    if len(devices) < count:
        raise InvalidProblem(
            f"{jax.process_count()} processes have {len(devices)} devices, but the mesh needs "
            f"{count}"
        )
    idle = sorted(
        set(range(jax.process_count())) - {device.process_index for device in devices[:count]}
    )
    if idle:
        raise InvalidProblem(
            f"a mesh of {count} devices leaves processes {', '.join(map(str, idle))} without any "
            f"({len(devices)} devices in all): start as many processes as the mesh needs"
        )
    return list(devices[:count])


class JointClock(Clock):
    """A clock on which all processes stop if one of them does.

    A process that stopped alone would leave the others waiting.
    """

    def check(self) -> None:
        """Raise Cancelled or TimedOut in all processes if any of them has to end."""
        own_error: Exception | None = None
        try:
            super().check()
        except ToastError as raised:
            own_error = raised
        errors: list[Exception] = [raised for raised in exchange(own_error) if raised is not None]
        if errors:
            raise errors[0]


class OwnProcess:
    """A contender in this process, in step with its counterparts in the other processes."""

    def __init__(self, request: ContenderRequest, clock: Clock) -> None:
        import jax

        self.clock = clock
        self.request = request
        self.contender: Contender | None = Contender(
            request,
            jax.local_devices()[:1]
            if request.is_reference and request.devices.count == 1
            else attached(request.devices.count),
        )

    def ask(self, command: str, time_limit_s: float, **arguments: Any) -> list[Any]:
        """Carry out a command, and exchange its outcome; a call that hangs cannot be stopped."""
        failure, answer = "", None
        try:
            answer = getattr(self.contender, command)(**arguments)
        except Exception as error:
            failure = f"{type(error).__name__}: {str(error)[:1500]}"
        answers = exchange((failure, answer))
        failures = [f"process {i}: {text}" for i, (text, _) in enumerate(answers) if text]
        if failures:
            raise RunFailed(f"{self.request.name}: {failures[0]}")
        return [answer for _, answer in answers]

    def stop(self) -> None:
        """Free the contender's arrays."""
        self.contender = None
        gc.collect()


def exchange(message: Any) -> list[Any]:
    """The messages of all processes, in process order."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return [message]
    data = np.frombuffer(pickle.dumps(message), np.uint8)
    sizes = np.asarray(
        multihost_utils.process_allgather(np.asarray([len(data)], np.int32))
    ).reshape(-1)
    # Sent as 32-bit numbers, since not every backend has collectives of bytes.
    padded = np.zeros(int(-(-sizes.max() // 4) * 4), np.uint8)
    padded[: len(data)] = data
    rows = np.asarray(multihost_utils.process_allgather(padded.view(np.int32)))
    return [pickle.loads(row.tobytes()[:size]) for row, size in zip(rows, sizes, strict=True)]
