"""An HTTP server that is no bus: it answers what a test wants, whatever it is asked for."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

Answer = tuple[int, bytes]


@dataclass
class Page:
    url: str
    requests: list[str] = field(default_factory=list)


@contextlib.contextmanager
def running_page(answers: dict[str, Answer], otherwise: Answer = (502, b"no backend")) -> Iterator[Page]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page.requests.append(self.path)
            status, body = answers.get(self.path, otherwise)
            self.send_response(status)
            self.send_header("location", "https://bus.example/elsewhere")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def do_DELETE(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    page = Page(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield page
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
