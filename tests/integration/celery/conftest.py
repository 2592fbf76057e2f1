"""One Celery worker of each pool, whose broker is a folder, for the tests that leave it alive."""

import pytest
from support.celeryapp import TASKS_AT_ONCE
from support.policytasks import transfer
from support.reserving import reserved_names
from support.uniquetasks import TASKS, known_to
from support.worker import Worker
from support.zoo import Zoo, eventually


def _worker(pool, concurrency):
    @pytest.fixture(scope="package", name=f"{pool}_worker")
    def worker(single, tmp_path_factory):
        home = tmp_path_factory.mktemp(pool)
        options = {"concurrency": concurrency, "options": ["--task-events"]}
        with Zoo(single.hosts, single) as zoo, Worker(zoo, home, pool=pool, **options) as worker:
            yield worker

    return worker


prefork_worker = _worker("prefork", 2)
threads_worker = _worker("threads", TASKS_AT_ONCE)
gevent_worker = _worker("gevent", TASKS_AT_ONCE)
solo_worker = _worker("solo", 1)


@pytest.fixture
def shared_worker(prefork_worker):
    return prefork_worker


@pytest.fixture
def publisher(worker):
    """The worker, with a client that knows its unique tasks and its locks. No reservation is left at the end."""
    if "once" not in worker.app.tasks:
        known_to(worker.app, [*TASKS, transfer])
    with worker.zoo.configured():
        yield worker
        eventually(lambda: reserved_names(worker.zoo) == [], 10, "a reservation was left")
