"""One Celery worker on Redis for the tests that leave it alive."""

import pytest
from support.brokers import Redis
from support.worker import Worker
from support.zoo import Zoo


@pytest.fixture(scope="package")
def redis_worker(single, tmp_path_factory):
    """A worker of two processes, with a Redis of its own: other tests clear theirs."""
    zoo = Zoo(single.hosts, single)
    home = tmp_path_factory.mktemp("redis")
    with Redis() as redis, Worker(zoo, home, conf=redis.conf) as worker:
        yield worker
    zoo.close()


@pytest.fixture
def shared_worker(redis_worker):
    return redis_worker
