"""What may stand between a client and its server: a proxy of the environment variables, and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Relay:
    """Passes bytes on to `target`; without one it is a proxy, which asks where to."""

    def __init__(self, target: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self.tls = tls
        self.heads: list[bytes] = []
        """Of the connections through the proxy, the first each."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", ssl=tls), self._loop)
        self.server = started.result(10)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            there, first = urlsplit(self.target), b""
            if not self.target:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                if b"Proxy-Authorization: Basic YW5uOnBAc3M=\r\n" not in head:
                    writer.write(b"HTTP/1.1 407 Who are you?\r\nContent-Length: 0\r\n\r\n")
                    await self._end(writer)
                    return
                method, where, _ = head.decode().split(None, 2)
                there = urlsplit(f"//{where}" if method == "CONNECT" else where)
                first = b"" if method == "CONNECT" else head
                if method == "CONNECT":
                    writer.write(b"HTTP/1.1 200 Go on\r\n\r\n")
            far_reader, far_writer = await asyncio.open_connection(there.hostname, there.port)
            far_writer.write(first)
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        await self._end(writer)

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _stop(self) -> None:
        self.server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def relay(target: str = "", tls: ssl.SSLContext | None = None) -> Iterator[Relay]:
    one = Relay(target, tls)
    try:
        yield one
    finally:
        one.close()


def certified(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """What a server with TLS needs, and the file with the certificate to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "toolyard tests")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = builder.add_extension(here, critical=False).sign(key, hashes.SHA256())
    trusted, both = folder / "trusted.pem", folder / "both.pem"
    trusted.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    both.write_bytes(trusted.read_bytes() + key.private_bytes(serialization.Encoding.PEM, *form))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context, trusted
