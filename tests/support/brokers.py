"""A Redis and a RabbitMQ of the tests' own: in temporary directories, on free ports of loopback."""

import abc
import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import kombu
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel as RedisChannel
from redis import Redis as RedisClient
from redis.exceptions import RedisError

from support import debian
from support.celeryfolder import QUEUES
from support.ensemble import free_ports
from support.served import Served

REDIS = "redis-server"  # the program and Debian's package
VALKEY = "valkey-server"
RABBITMQ = "rabbitmq-server"  # the same
RABBITMQ_SCRIPTS = Path("/usr/lib/rabbitmq/bin")  # Debian's; what it puts on the PATH refuses accounts but its own
TIED = debian.tied("KILL")


def find_redis():
    program = shutil.which(REDIS) or shutil.which(VALKEY)
    if program is None:
        raise debian.NotInstalled("Redis server", REDIS)
    return program


def find_rabbitmq():
    if (RABBITMQ_SCRIPTS / RABBITMQ).exists():
        return RABBITMQ_SCRIPTS / RABBITMQ
    program = shutil.which(RABBITMQ)
    if program is None:
        raise debian.NotInstalled("RabbitMQ server", RABBITMQ)
    return Path(program).resolve()


class Broker(Served):
    @property
    @abc.abstractmethod
    def conf(self): ...

    @abc.abstractmethod
    def clear(self):
        """Forget all messages; no worker may be there."""


class Redis(Broker):
    """Messages that a worker has taken come back to the queue when their visibility timeout is over."""

    def __init__(self):
        program = find_redis()
        super().__init__()
        self._program = program
        (self.port,) = free_ports(1)

    @property
    def conf(self):
        address = f"redis://127.0.0.1:{self.port}"
        return {"broker_url": f"{address}/0", "result_backend": f"{address}/1", "broker_transport_options": {}}

    def returning(self, visibility_timeout):
        """Return `conf` with which workers look once a second for lost messages, if kombu can; see `bring_back`."""
        options = {
            "visibility_timeout": visibility_timeout,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 5,  # a worker that is killed as it looks stops all others from looking for so long
        }
        return {**self.conf, "broker_transport_options": options}

    def bring_back(self, visibility_timeout):
        """Bring back what was taken longer ago than that, as any worker does, where workers can't be told when."""
        if hasattr(RedisChannel, "unacked_restore_interval"):
            return
        options = {"visibility_timeout": visibility_timeout}
        with kombu.Connection(self.conf["broker_url"], transport_options=options) as connection:
            channel = connection.channel()
            channel.qos.restore_visible(interval=1)

    def tags(self):
        with RedisClient(port=self.port, decode_responses=True) as client, client.pipeline() as pipe:
            pipe.hkeys("unacked")
            for queue in QUEUES:
                pipe.lrange(queue, 0, -1)
            unacked, *queues = pipe.execute()
        queued = {json.loads(message)["properties"]["delivery_tag"] for queue in queues for message in queue}
        return queued | set(unacked)

    def count_unacked(self):
        with RedisClient(port=self.port) as client:
            return int(client.hlen("unacked"))

    def clear(self):
        with RedisClient(port=self.port) as client:
            client.flushall()

    def disconnect_all(self):
        with RedisClient(port=self.port) as client:
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    def _launch(self):
        # Only `restart()` reads the file, so it need not reach the disk.
        kept = {"save": "", "appendonly": "yes", "appendfsync": "no"}
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self._directory, **kept}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._start([*TIED, self._program, *words])

    def _answers(self):
        with contextlib.suppress(RedisError), RedisClient(port=self.port, socket_timeout=5) as client:
            return bool(client.ping())
        return False


class RabbitMQ(Broker):
    """Messages that a worker has taken come back to the queue as soon as its connection is gone."""

    def __init__(self):
        program = find_rabbitmq()
        super().__init__()
        self._program = program
        self.port, self._between_nodes, self._names = free_ports(3)

    @property
    def conf(self):
        return {"broker_url": f"amqp://guest:guest@127.0.0.1:{self.port}//", "broker_transport_options": {}}

    @property
    def fixes_prefetch_counts(self):
        """Whether this version fixes the prefetch count of all queues, as of quorum queues."""
        with kombu.Connection(self.conf["broker_url"]) as connection:
            properties = connection.connect().server_properties
            return int(properties["version"].partition(".")[0]) >= 4

    @contextlib.contextmanager
    def quorum_by_default(self):
        """Give the `conf` of a virtual host in which each queue is a quorum queue. Celery does not know that."""
        self._control("add_vhost", "quorum", "--default-queue-type", "quorum")
        self._control("set_permissions", "--vhost", "quorum", "guest", ".*", ".*", ".*")
        try:
            yield {**self.conf, "broker_url": f"{self.conf['broker_url'].rstrip('/')}/quorum"}
        finally:
            self._control("delete_vhost", "quorum")

    def clear(self):
        with kombu.Connection(self.conf["broker_url"]) as connection:
            for queue in QUEUES:
                kombu.Queue(queue).bind(connection.channel()).delete()
                kombu.Exchange(queue).bind(connection.channel()).delete()  # a test may need another type

    def _launch(self):
        # The server of names would be started by Erlang, and outlive it.
        self._start([*TIED, "epmd", "-address", "127.0.0.1", "-port", str(self._names)])
        (self._directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\ndisk_free_limit.absolute = 10MB\n"
        )
        (self._directory / "plugins").write_text("[].\n")
        self._start([*TIED, str(self._program)], env=self._env)

    def disconnect_all(self):
        self._control("close_all_connections", "by a test")

    def restart_app(self):
        self._control("stop_app")
        self._control("start_app")
        self._wait_ready()

    @contextlib.contextmanager
    def full(self, queue):
        rule = json.dumps({"max-length": 0, "overflow": "reject-publish"})
        self._control("set_policy", "full", f"^{queue}$", rule, "--apply-to", "queues")
        try:
            yield
        finally:
            self._control("clear_policy", "full")

    def _control(self, *command):
        rabbitmqctl = [str(self._program.with_name("rabbitmqctl")), *command]
        subprocess.run(rabbitmqctl, env=self._env, cwd=self._directory, check=True, capture_output=True)

    @property
    def _env(self):
        here = self._directory
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(here),  # where Erlang puts its cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._names),
            "RABBITMQ_CONF_ENV_FILE": str(here / "none"),
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(here / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "plugins"),
            "RABBITMQ_NODENAME": f"tests-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._between_nodes),
            "RABBITMQ_MNESIA_BASE": str(here / "data"),
            "RABBITMQ_LOG_BASE": str(here / "logs"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server, and leaves no shell between us and it
        }

    def _answers(self):
        url = self.conf["broker_url"]
        with contextlib.suppress(OSError, OperationalError), kombu.Connection(url, connect_timeout=5) as connection:
            connection.connect()
            return True
        return False
