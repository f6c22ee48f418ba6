"""A session with a bus: one connection, one credential, requests one after the other.

Nothing is sent before the other side is known to be the right one: over https its certificate is verified,
and that of a bus in a folder must be the very one that the folder names. Redirects are never followed.
What the bus answers becomes a value or an error of ours; nothing is retried here.
"""

import contextlib
import http.client
import socket
import ssl
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from routemaster.cli import output
from routemaster.cli.credentials import Credential
from routemaster.cli.place import Target
from routemaster.errors import BusAway, Refused, RoutemasterError, SettingError

CONNECT_S = 5.0
ANSWER_S = 30.0
MAX_ANSWER = 256 * 2**20
MAX_SHOWN = 1_000
AWAY = (502, 503, 504)
_Value = TypeVar("_Value")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes


class _Problem(msgspec.Struct):
    detail: str = ""
    field: str | None = None
    index: int | None = None


class Session:
    def __init__(self, target: Target, credential: Credential) -> None:
        self.target = target
        self.url = target.url
        self._credential = credential
        parts = urlsplit(target.url)
        self._host, self._port, self._prefix = parts.hostname or "", parts.port, parts.path
        self._trust = _trust(target) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        answer_s: float = ANSWER_S,
    ) -> Answer:
        """One request. Any answer is one; BusAway when there is none. Bytes are sent as they are."""
        headers = {"Authorization": f"Bearer {self._credential.secret}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = kind
            body = body if isinstance(body, bytes) else msgspec.json.encode(body)
        try:
            return self._ask(method, path, body, headers, answer_s)
        except BaseException:
            self.close()
            raise

    def do(self, method: str, path: str, body: Any = None, *, answer_s: float = ANSWER_S) -> Answer:
        """A request that has to succeed: otherwise Refused, with what the bus said, or BusAway."""
        answer = self.ask(method, path, body, answer_s=answer_s)
        if answer.status >= 300:
            raise self.error(answer)
        return answer

    def get(self, path: str, kind: type[_Value]) -> _Value:
        return self.parse(self.do("GET", path), kind)

    def post(self, path: str, body: Any, kind: type[_Value], *, answer_s: float = ANSWER_S) -> _Value:
        return self.parse(self.do("POST", path, body, answer_s=answer_s), kind)

    def parse(self, answer: Answer, kind: type[_Value]) -> _Value:
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except msgspec.MsgspecError as error:
            raise RoutemasterError(f"what {self.url} answered is not what was expected: {error}") from None

    def error(self, answer: Answer) -> RoutemasterError:
        """What an answer that is no success means, on one line."""
        if 300 <= answer.status < 400:
            where = urlsplit(answer.headers.get("location", ""))
            if not where.netloc:
                return Refused(f"{self.url} sends somewhere else ({answer.status}): is it a bus?")
            here = urlsplit(self.url).path
            base = f"{where.scheme}://{where.netloc}{here if where.path.startswith(here) else ''}"[:MAX_SHOWN]
            return Refused(f"{self.url} sends to {base}: name the bus by that URL")
        said = told(answer)
        if answer.status in AWAY:
            return BusAway(f"the bus at {self.url} cannot do this now: {said}", was_sent=True)
        if answer.status == 401:
            return Refused(
                f"the bus at {self.url} does not know the credential from {self._credential.source}"
            )
        if answer.status < 500:
            return Refused(f"{said} ({answer.status} from {self.url})")
        return RoutemasterError(f"the bus at {self.url} failed: {said} ({answer.status})")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], answer_s: float
    ) -> Answer:
        connection = self._connected()
        assert connection.sock is not None  # noqa: S101 (it was just connected)
        connection.sock.settimeout(answer_s)
        try:
            # One who refuses a body early closes while we still write: what it said may be there to be read.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._prefix + path, body, headers)
            response = connection.getresponse()
            said = response.read(MAX_ANSWER + 1)
        except TimeoutError:
            raise BusAway(f"{self.url} did not answer within {answer_s:.0f} s", was_sent=True) from None
        except (OSError, http.client.HTTPException) as error:
            raise BusAway(self._broken(error), was_sent=True) from None
        if len(said) > MAX_ANSWER:
            raise RoutemasterError(f"{self.url} answered more than {output.size(MAX_ANSWER)}")
        if response.will_close:
            self.close()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, said)

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is not None and self._connection.sock is not None:
            return self._connection
        try:
            self._connection = self._connect()
        except ConnectionRefusedError:
            raise BusAway(f"nothing listens at {self.url}: is the bus running?") from None
        except TimeoutError:
            raise BusAway(f"{self.url} did not take a connection within {CONNECT_S:.0f} s") from None
        except ssl.SSLCertVerificationError as error:
            hint = "--ca names a file of certificates to trust"
            raise BusAway(f"{self.url} cannot be trusted: {error.verify_message}; {hint}") from None
        except ssl.SSLError as error:
            reason = error.reason or str(error)
            raise BusAway(f"{self.url} does not speak TLS as it should ({reason}): is it https?") from None
        except socket.gaierror as error:
            raise BusAway(f"the host of {self.url} is not known ({error.strerror})") from None
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise BusAway(f"{self.url} cannot be reached ({reason or error})") from None
        return self._connection

    def _connect(self) -> http.client.HTTPConnection:
        if self._trust is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_S)
            connection.connect()
            return connection
        secure = http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_S, context=self._trust)
        secure.connect()
        if self.target.certificate is not None:
            self._check_pinned(secure, self.target.certificate)
        return secure

    def _check_pinned(self, connection: http.client.HTTPSConnection, path: Path) -> None:
        held = connection.sock
        if not isinstance(held, ssl.SSLSocket) or held.getpeercert(binary_form=True) != _certificate(path):
            connection.close()
            raise BusAway(f"who answers at {self.url} does not have the certificate in {path}")

    def _broken(self, error: Exception) -> str:
        if isinstance(error, http.client.RemoteDisconnected):
            reason = "the connection was closed before an answer came"
        elif isinstance(error, http.client.HTTPException):
            reason = "what came is no HTTP"
        else:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = "" if self._trust else " (does it serve https?)"
        return f"{self.url} gave no answer: {reason}{hint}"


def told(answer: Answer) -> str:
    """What an answer says, on one line: a problem's own words, with the field that they are about."""
    problem = _Problem()
    with contextlib.suppress(msgspec.MsgspecError):
        problem = msgspec.json.decode(answer.body, type=_Problem)
    text = problem.detail or answer.body[:MAX_SHOWN].decode("utf-8", "replace").strip()
    if problem.field and problem.field not in text:
        text = f"{problem.field}: {text}"
    return output.printable(text[:MAX_SHOWN]) or f"status {answer.status}"


def index_of(answer: Answer) -> int | None:
    """Which event of a bulk a problem is about."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(answer.body, type=_Problem).index
    return None


def path(*parts: str) -> str:
    """A path of names that somebody gave."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _trust(target: Target) -> ssl.SSLContext:
    if target.certificate is not None:
        # Compared as a whole once the handshake has shown that the other side has its key.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=target.authorities)
    except (OSError, ValueError) as error:
        expected = f"a file of certificates in PEM ({error})"
        raise SettingError("--ca", str(target.authorities), expected) from None


def _certificate(path: Path) -> bytes:
    """The first certificate of a file: the server's own."""
    try:
        text = path.read_text(encoding="ascii")
        begin = text.index(ssl.PEM_HEADER)
        end = text.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
        return ssl.PEM_cert_to_DER_cert(text[begin:end])
    except (OSError, ValueError) as error:
        raise BusAway(f"the bus's certificate {path} cannot be read ({error})") from None
