"""What runs in Ray's actors: ranks, and functions that outlive them; and how a rank calls such a function."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from draftsmith.distributed.orders import obeying
from draftsmith.errors import ConfigError, WorkerLostError, first_line

T = TypeVar("T")
U = TypeVar("U")
ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR

Answer = Callable[[Mapping[str, Any]], None]
Entry = Callable[[Mapping[str, Any], Answer, Sequence[Any]], int]


class FunctionActor:
    """A function that is made once, and called by one rank after another."""

    def __init__(self) -> None:
        self._made_of: tuple[Any, ...] | None = None
        self._function: Callable[[Any], Any] | None = None
        self._word: Any = None

    def here(self) -> None:
        """Tells that the actor has a place."""

    def make(self, maker: Callable[..., tuple[Callable[[Any], Any], Any]], *arguments: Any) -> Any:
        """Have the function that `maker` makes of these arguments, and what it says about it."""
        made_of = (maker.__module__, maker.__qualname__, arguments)  # it may have come as a copy each time
        if self._made_of != made_of:
            self._made_of, self._function = None, None  # the old one's memory is free before a new one is made
            self._function, self._word = maker(*arguments)
            self._made_of = made_of
        return self._word

    def call(self, item: Any) -> Any:
        assert self._function is not None, "make comes before call"
        return self._function(item)


class RemoteFunction(Generic[T, U]):
    """A function in a FunctionActor, used like the function. Every answer that is waited for has a deadline.

    When the actor dies Ray gives it another place, as often as it was told to, and `word` makes the function again.
    """

    def __init__(self, actor: Any, maker: Callable[..., Any], *arguments: Any, make_s: float, answer_s: float) -> None:
        self._actor = actor
        self._what = (maker, *arguments)
        self._make_s = make_s
        self._answer_s = answer_s
        self._begun = self._make()  # now, so that many are made at once; kept, or Ray would tell its error itself

    def word(self, within_s: float | None = None) -> Any:
        """What the maker said, as soon as the function is there.

        Raises what the maker raised, or WorkerLostError if it is not there in time. To be asked before each call: a
        death since the last one is none of the item's business.
        """
        return _answered(self._make(), self._make_s if within_s is None else within_s, began=False)

    def __call__(self, item: T) -> U:
        """Raises what the function raised, or WorkerLostError if its process dies meanwhile or does not answer."""
        return _answered(self._actor.call.remote(item), self._answer_s, began=True)  # type: ignore[no-any-return]

    def when_there(self, tell: Callable[[bool], None]) -> None:
        """Have `tell` called, by a thread of Ray's, when the function is there again or is known never to be."""
        made: Future[Any] = self._make().future()
        made.add_done_callback(lambda made: tell(made.exception() is None))

    def _make(self) -> Any:
        """Nothing is done where the function is there. Asked again until the actor has a place, or gets no more."""
        return self._actor.make.options(max_task_retries=-1).remote(*self._what)


def _answered(answer: Any, seconds: float, *, began: bool) -> Any:
    import ray

    try:
        return ray.get(answer, timeout=seconds)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.GetTimeoutError:
        raise WorkerLostError(f"an actor has not answered for {seconds:g} s", began=began) from None
    except ray.exceptions.RayError as error:
        raise WorkerLostError(f"an actor is gone, or its machine: {first_line(error)}", began=began) from None


class RankActor:
    """One rank. Its methods run in the main thread of a process of its own."""

    def here(self) -> None:
        """Tells that the actor has a place."""

    def run(
        self,
        entry: Entry,
        word: Mapping[str, Any],
        directory: str,
        environment: Mapping[str, str],
        functions: Sequence[Any],
    ) -> tuple[int, Mapping[str, Any] | None]:
        """The exit code of `entry`, and what it answered last."""
        import ray

        own = ray.util.get_node_ip_address()
        interface = _interface_of(own)
        places = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # it sees what Ray gave it, and nobody else does
        os.environ.update({**environment, **places, "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface})
        try:
            os.chdir(directory)
        except OSError as error:
            raise ConfigError(
                f"{directory}, where train was started, cannot be entered on {socket.gethostname()} "
                f"({error.strerror}); start it in a directory that all machines share"
            ) from None
        answers: list[Mapping[str, Any]] = []
        with obeying(environment):
            code = entry(word, answers.append, functions)
        return code, answers[-1] if answers else None


def _interface_of(address: str) -> str:
    """The network interface of this machine with that address. Raises ConfigError if none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                found = fcntl.ioctl(asked, ADDRESS_OF_INTERFACE, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    raise ConfigError(f"Ray says that {socket.gethostname()} is {address}, which none of its interfaces is")
