"""Machines made of Linux namespaces: each with its own host name, network, processes and /dev/shm, and one switch.

What they have in common is this machine's processors and files. Switching one off is what pulling its plug is: all of
its processes are gone at once, and so is its network.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ALL = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
NETWORK = "10.77.0"
HERE = Path(__file__).parents[2]


def can_be_made() -> bool:
    """Namespaces are root's, and not every container lets them be made."""
    try:
        return subprocess.run(["unshare", *ALL, "ip", "link"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@dataclass(frozen=True)
class Machine:
    """One of them. `ip` is its address, `home` its user's directory."""

    name: str
    ip: str
    home: Path
    _init: subprocess.Popen[bytes]

    def start(self, *command: object, **environment: str) -> subprocess.Popen[str]:
        """Start a command here, in the repository, with an environment of its own."""
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "XDG_CACHE_HOME") if name in os.environ}
        return subprocess.Popen(
            [*_inside(self._init), *map(str, command)],
            env={**kept, "HOME": str(self.home), "HF_HUB_OFFLINE": "1", "COLUMNS": "200", **environment},
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def shell(self, lines: str, *, timeout_s: float = 120) -> str:
        """What lines of a shell print; they must succeed."""
        started = self.start("bash", "-ec", lines)
        said, _ = started.communicate(timeout=timeout_s)
        assert started.returncode == 0, said
        return said

    def processes(self) -> bytes:
        """The command lines of all that runs here."""
        return subprocess.run(
            [*_inside(self._init), "sh", "-c", "cat /proc/*/cmdline"], capture_output=True, check=False
        ).stdout

    def switch_off(self) -> None:
        self._init.kill()
        self._init.wait()


@contextmanager
def machines(names: Sequence[str], directory: Path) -> Iterator[list[Machine]]:
    """Some of them; their users' homes are in `directory`. All are switched off at the end."""
    hosts = directory / "hosts"
    addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, start=1)}
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in addresses.items()))
    Path("/tmp/ray").mkdir(exist_ok=True)  # covered in each of them: Ray keeps its files there
    with ExitStack() as stack:
        switch = stack.enter_context(_namespaces("--net", "--fork", "--kill-child"))
        _run(switch, f"ip link add br0 type bridge && ip link set br0 up && ip address add {NETWORK}.254/24 dev br0")
        made = []
        for name, ip in addresses.items():
            init = stack.enter_context(_namespaces(*ALL))
            home = directory / name
            home.mkdir()
            _run(
                switch,
                f"ip link add {name} type veth peer name eth0 netns {_child(init)} && "
                f"ip link set {name} master br0 && ip link set {name} up",
            )
            _run(
                init,
                f"hostname {name} && mount -t tmpfs -o size=1g none /dev/shm && mount -t tmpfs none /tmp/ray && "
                f"mount --bind {hosts} /etc/hosts && ip link set lo up && ip address add {ip}/24 dev eth0 && "
                f"ip link set eth0 up && ip route add default via {NETWORK}.254",
            )
            made.append(Machine(name, ip, home, init))
        yield made


@contextmanager
def _namespaces(*kinds: str) -> Iterator[subprocess.Popen[bytes]]:
    init = subprocess.Popen(["unshare", *kinds, "sleep", "infinity"])
    try:
        deadline = time.monotonic() + 5
        while "sleep" not in _name_of(_child(init)):
            assert time.monotonic() < deadline, "unshare has not started"
            time.sleep(0.01)
        yield init
    finally:
        init.kill()
        init.wait()


def _child(init: subprocess.Popen[bytes]) -> str:
    """The number, out here, of the first process in there."""
    return (Path("/proc") / f"{init.pid}/task/{init.pid}/children").read_text().strip()


def _name_of(number: str) -> str:
    try:
        return (Path("/proc") / number / "comm").read_text() if number else ""
    except OSError:
        return ""


def _inside(init: subprocess.Popen[bytes]) -> list[str]:
    return ["nsenter", "--target", _child(init), "--all", "--wdns=" + str(HERE)]


def _run(init: subprocess.Popen[bytes], lines: str) -> None:
    done = subprocess.run([*_inside(init), "sh", "-ec", lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
