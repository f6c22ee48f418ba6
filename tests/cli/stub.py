"""Stands in for web and worker where the supervisor is what is tested: `stub.py web --fd N | worker …`."""

import signal
import socket
import sys
import threading


def serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")


if sys.argv[1] == "web":
    listener = socket.socket(fileno=int(sys.argv[3]))
    listener.setblocking(True)
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
signal.sigwait({signal.SIGTERM})
