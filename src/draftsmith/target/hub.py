"""Whether the hub can be asked at all: its client tries for a minute before it says that there is no network."""

from __future__ import annotations

import socket
import urllib.request
from urllib.parse import urlsplit

from huggingface_hub import constants


def hub_is_reachable() -> bool:
    """Whether the hub's name resolves, or a proxy will see to that."""
    if urllib.request.getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True
