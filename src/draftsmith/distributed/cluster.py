"""Ray, for as long as a block lasts: one of our own on this machine, or a cluster that runs already.

Our own asks for a token, listens on 127.0.0.1 alone, has no dashboard, tells nobody that it is used, and leaves nothing
behind, however we end.
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftsmith.distributed import janitor
from draftsmith.distributed.ranks import LOOPBACK
from draftsmith.errors import ConfigError, first_line

SHARED_MEMORY = Path("/dev/shm")
LEAST_STORE_BYTES = 128 << 20  # beside results: messages, and what is not given back this very moment
ANSWER_S = 5.0  # for a cluster to accept a connection, and again to greet
ASKING_S = 8.0  # to start Python, import Ray and hear who the cluster is
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # the preface of HTTP/2, and empty settings
SETTINGS = 4  # the kind of frame that a server greets with
ASKING = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
QUIET = {"log_to_driver": False, "logging_level": "critical"}  # ranks and errors speak for themselves


@dataclass(frozen=True)
class Machine:
    """What Ray may use of one machine. store_bytes: of its object store."""

    name: str
    cpus: float
    gpus: float
    store_bytes: int


def store_bytes_for(budget_bytes: int, num_budgets: int) -> int:
    """Bytes of an object store that holds the waiting results of so many ranks; a quarter goes to fragments."""
    return LEAST_STORE_BYTES + num_budgets * budget_bytes * 5 // 4


def budget_bytes_in(store_bytes: int, num_budgets: int) -> int:
    """The largest budget of each rank that fits; below 1 if none does."""
    return (store_bytes - LEAST_STORE_BYTES) * 4 // (5 * num_budgets)


def shared_bytes() -> int:
    """Bytes that an object store of our own may have. Where Ray finds fewer it would silently use a disk."""
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    return shutil.disk_usage(place).free


def require_ray() -> None:
    """Raises ConfigError if Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigError("runtime=ray needs Ray, which is not installed: pip install 'draftsmith[ray]'")


@contextmanager
def own_ray(*, cpus: float, gpus: float, store_bytes: int) -> Iterator[None]:
    """A Ray of this process on this machine. Raises ConfigError if it cannot start here."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        if "ray" in sys.modules:
            raise ConfigError("Ray was imported here without a token; set RAY_AUTH_MODE=token before it is imported")
        os.environ["RAY_AUTH_MODE"] = "token"  # read once, when Ray is imported
    import ray
    from ray._private import ray_constants

    with _scratch_directory() as scratch, _signals_kept():
        token = scratch / "token"
        with os.fdopen(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(_token())
        settings = {"RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
        settings["RAY_worker_niceness"] = "0"  # by default whatever else runs here goes before actors
        with _environment(**settings):
            was, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False  # that is: on loopback
            try:
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    num_gpus=gpus,
                    object_store_memory=store_bytes,
                    include_dashboard=False,
                    _temp_dir=str(scratch),
                    **QUIET,
                )
                if ray.util.get_node_ip_address() != LOOPBACK:
                    raise ConfigError(f"Ray {ray.__version__} listens on more than {LOOPBACK}; use the version we pin")
                yield
            except (OSError, RuntimeError, ValueError) as error:
                if ray.is_initialized():
                    raise
                raise ConfigError(f"Ray does not start on this machine: {first_line(error)}") from error
            finally:
                ray_constants.ENABLE_RAY_CLUSTER = was
                ray.shutdown()


@contextmanager
def ray_at(address: str) -> Iterator[Sequence[Machine]]:
    """The cluster at host:port, and its machines. Raises ConfigError if it does not answer, as a rule within 10 s."""
    _insist_on_token()
    numbers = _probe(address)
    _ask(address, numbers)
    import ray

    with _signals_kept(), _environment(RAY_USAGE_STATS_ENABLED="0"):
        try:
            ray.init(address=numbers, **QUIET)
            machines = [_machine(node) for node in ray.nodes() if node["Alive"]]
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            ray.shutdown()
            raise ConfigError(
                f"ray.address is {address!r}, which cannot be joined: {first_line(error)}; start train on a machine "
                "of the cluster, with its token in RAY_AUTH_TOKEN_PATH"
            ) from error
        try:
            yield machines
        finally:
            ray.shutdown()


def _insist_on_token() -> None:
    """Ray reads this once, when it is imported. Raises ConfigError if somebody has asked for another way."""
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode != "token":
        raise ConfigError(f"RAY_AUTH_MODE is {mode!r} in the environment; Ray is used with a token only: unset it")


def _machine(node: Mapping[str, Any]) -> Machine:
    has = node["Resources"]
    store = int(has.get("object_store_memory", 0))
    return Machine(node["NodeManagerHostname"], has.get("CPU", 0.0), has.get("GPU", 0.0), store)


def _probe(address: str) -> str:
    """Greet as gRPC does; Ray itself would try for minutes. Returns IP:port, for Ray does not know every name.

    Raises ConfigError if no greeting comes back.
    """
    host, _, port = address.rpartition(":")
    try:
        numbers = socket.gethostbyname(host)
        with socket.create_connection((numbers, int(port)), timeout=ANSWER_S) as connection:
            connection.sendall(GREETING)
            answer = connection.recv(9)
        if answer[3:4] != bytes([SETTINGS]):
            raise OSError("what answers is not Ray")
        return f"{numbers}:{port}"
    except (OSError, ValueError) as error:
        raise _silent(address, first_line(error)) from None


def _ask(address: str, numbers: str) -> None:
    """Ask who the cluster is, in a process of its own: Ray ends the one that asks without a token.

    Raises ConfigError if the cluster has another token, or does not tell. Where Ray can no longer be asked in this way,
    joining it says what is wrong, half a minute later.
    """
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASKING, numbers],
            env={**os.environ, "RAY_py_gcs_connect_timeout_s": f"{ANSWER_S:.0f}"},
            capture_output=True,
            text=True,
            timeout=ASKING_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _silent(address, f"not within {ASKING_S:g} s") from None
    said = asked.stderr if asked.returncode else ""
    if "authenti" in said.lower():
        raise ConfigError(
            f"ray.address is {address!r}, a cluster whose token is not the one here, if there is one; put the "
            "cluster's into ~/.ray/auth_token, or into the file that RAY_AUTH_TOKEN_PATH names"
        )
    if "RpcError" in said:
        raise _silent(address, said.strip().rpartition("\n")[2])


def _silent(address: str, why: str) -> ConfigError:
    return ConfigError(
        f"ray.address is {address!r}, where Ray does not answer ({why}); it is the host:port that `ray start --head` "
        "prints"
    )


@functools.cache
def _token() -> str:
    """Ray remembers the first one that a process has used."""
    return secrets.token_hex(32)


@contextmanager
def _scratch_directory() -> Iterator[Path]:
    """A directory for Ray's sockets and logs. Afterwards it is gone, with who knows of it, also if we are killed."""
    directory = tempfile.mkdtemp(prefix="draftsmith-ray-", dir="/tmp")  # paths of sockets must be short
    cleaning = subprocess.Popen(
        [sys.executable, "-I", "-S", janitor.__file__, directory], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield Path(directory)
    finally:
        assert cleaning.stdin is not None
        cleaning.stdin.close()
        cleaning.wait()


@contextmanager
def _environment(**settings: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray puts handlers of its own in their place."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # one that Python did not set
                signal.signal(number, handler)
