"""The files for TLS of the client of the lock coordinator for Python, while they are renewed."""

import asyncio
import contextlib
import ssl

import pytest
from support.certificates import authority, certificate
from support.zoo import ROOM, eventually

from zklock_client import AsyncZkLockClient

NAMES = ("first", "second")


class Gate:
    """Ends TLS in front of a coordinator, and notes the name in the certificate of each connection."""

    def __init__(self, folder, behind):
        self.names = []
        self.port = 0
        self._behind = behind
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
        self._context.load_cert_chain(folder / "localhost.pem", folder / "localhost.key")
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.set_alpn_protocols(["h2"])
        self._writers = []

    async def open(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self):
        await _end(self._server)
        self.reset()

    async def end(self):
        """Close it, and wait for its connections, whose client has ended: a test must leave none."""
        await self.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # a TLS handshake is a task, and begins another
            await asyncio.wait(others)

    @contextlib.asynccontextmanager
    async def refusing(self):
        """End all connections, and refuse new ones for the length of a block. The semaphore counts them."""
        await self.close()
        refused = asyncio.Semaphore(0)

        async def refuse(_, writer):
            writer.transport.abort()
            refused.release()

        server = await asyncio.start_server(refuse, "127.0.0.1", self.port)
        yield refused
        await _end(server)
        await self.open()

    def reset(self):
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader, writer):
        self._writers.append(writer)
        subject = writer.get_extra_info("peercert")["subject"]
        self.names += [value for field in subject for name, value in field if name == "commonName"]
        try:
            behind, to_behind = await asyncio.open_connection("127.0.0.1", self._behind)
            self._writers.append(to_behind)
            await asyncio.gather(_pass_on(reader, to_behind), _pass_on(behind, writer))
        finally:
            writer.transport.abort()


async def _end(server):
    """Close a server. Python 3.11 leaks a connection that it has accepted, if the server is closed before it begins."""
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    await asyncio.sleep(0)  # what was accepted begins
    server.close()


async def _pass_on(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class Files:
    """The key and the certificate of the client."""

    def __init__(self, folder):
        self.ca, self.key, self.certificate = (folder / name for name in ("ca.pem", "client.key", "client.pem"))
        authority(folder, "ca")
        certificate(folder, "localhost", "ca")
        self._contents = {name: certificate(folder, name, "ca") for name in NAMES}
        self.renew("first")

    def renew(self, name):
        self.key.write_bytes(self._contents[name][0])
        self.renew_certificate(name)

    def renew_certificate(self, name):
        self.certificate.write_bytes(self._contents[name][1])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def gate(files, coordinator):
    files.renew("first")
    return Gate(files.ca.parent, coordinator.port)


@pytest.fixture
async def client(files, gate):
    await gate.open()
    address = f"localhost:{gate.port}"
    async with AsyncZkLockClient(address, ca=files.ca, key=files.key, certificate=files.certificate) as client:
        yield client
    await gate.end()


async def kept(lease):
    before = lease._until
    await asyncio.to_thread(eventually, lambda: lease._until > before)


async def lock(client):
    async with client.lock("b") as lease:
        lease.check()


async def test_the_next_connection_uses_the_renewed_certificate(client, gate, files):
    """Whether a new call makes it, or the stream that keeps the leases, at the same moment."""
    async with client.lock("a", term=3) as lease:
        await kept(lease)
        for number in range(1, 6):
            seen, name = len(gate.names), NAMES[number % 2]
            files.renew(name)
            for _ in range(2):  # a handshake that had begun before the renewal makes one more connection
                gate.reset()
                await asyncio.gather(lock(client), kept(lease))
                if name in gate.names[seen:]:
                    break
            assert gate.names[-1] == name


async def test_a_renewed_certificate_ends_no_lease_and_no_wait(client, gate, files, coordinator):
    """The earlier connection lasts until its calls are over."""
    zoo = coordinator.zoo
    async with client.lock("a", term=2) as lease:
        await kept(lease)
        with zoo.hold_elsewhere("b"):
            waiting = asyncio.create_task(lock(client))
            await asyncio.to_thread(zoo.wait_contenders, "b", 2)
            path = {*zoo.children("b")}
            files.renew("second")
            async with client.lock("c"):
                assert gate.names == ["first", "second"]
            for _ in range(5):
                await kept(lease)
            assert {*zoo.children("b")} == path
        await asyncio.wait_for(waiting, ROOM)


async def test_a_certificate_is_used_when_its_key_is_there(client, gate, files, caplog):
    files.renew_certificate("second")
    await lock(client)
    await lock(client)
    assert caplog.text.count("cannot be used yet") == 1
    files.renew("second")
    await lock(client)
    assert gate.names == ["first", "second"]
