"""A report on 127.0.0.1 that renews itself while its run goes on. One request at a time, no thread, nothing written.

The page asks for /state now and then and loads itself anew when it differs. A page is made at most every REST times as
long as making it took, so that watching a run does not slow it down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from draftsmith.errors import ConfigError

MIN_AGE_S = 5.0
REST = 20.0
PATIENCE_S = 1.0  # browsers open connections ahead of need; one that says nothing must not hold up the next
STATE_MARK = '<meta charset="utf-8">'


class LivePage:
    """The newest page and the state it was made from. `fingerprint` is cheap, `make` is not."""

    def __init__(
        self,
        make: Callable[[], str],
        fingerprint: Callable[[], str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._fingerprint, self._clock = make, fingerprint, clock
        self._page, self._state = "", ""
        self._made_at, self._cost_s = float("-inf"), 0.0

    def state(self) -> str:
        """What a page made now would be made from; that of the last one while it is too young to be replaced."""
        is_due = self._clock() - self._made_at >= max(MIN_AGE_S, REST * self._cost_s)
        return self._fingerprint() if is_due or not self._page else self._state

    def page(self) -> str:
        """The page, made anew if its state has changed and it is old enough."""
        state = self.state()
        if state != self._state or not self._page:
            begun = self._clock()
            page = self._make()
            self._page = page.replace(STATE_MARK, f'{STATE_MARK}<meta name="state" content="{state}">', 1)
            self._state, self._made_at = state, self._clock()
            self._cost_s = self._made_at - begun
        return self._page


def open_server(live: LivePage, *, port: int) -> HTTPServer:
    """A server on 127.0.0.1, not serving yet. Raises ConfigError if the port cannot be had; port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_S

        def do_GET(self) -> None:  # the name that http.server calls
            port = self.server.server_port  # type: ignore[attr-defined]
            # Any other name means that some web page has its own name point here and wants to read ours.
            if self.headers.get("Host") not in {f"127.0.0.1:{port}", f"localhost:{port}"}:
                self.send_error(403)
            elif self.path == "/":
                self._answer(live.page(), "text/html")
            elif self.path == "/state":
                self._answer(live.state(), "text/plain")
            else:
                self.send_error(404)

        def _answer(self, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Requests are no news."""

    try:
        return HTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port {port} of 127.0.0.1 cannot be used ({error}); give another with --port") from error
