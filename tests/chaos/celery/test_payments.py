"""Tasks that are delivered again whenever a process is killed have each effect once, and in turn."""

import math
import random

import pytest
from support.brokers import Redis
from support.payment_workers import PaymentWorkers

KEYS = ("a", "b", "c", "d", "e")
RETURN = 20.0  # seconds until Redis brings a task back; longer than a task that comes again waits for its next try
RESEND = 60.0  # seconds after which the sender loses patience, on Redis

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(
    ("troubled", "count", "every"),
    [pytest.param(False, 500, 5.0, id="kills"), pytest.param(True, 300, 2.0, id="all faults")],
)
@pytest.mark.parametrize("broker", ["rabbitmq", "redis"])
def test_payments_survive_faults(request, zoo, tmp_path, broker, troubled, count, every):
    """A worker that is killed as it takes a message from Redis loses it, so the sender sends such a payment again."""
    server = request.getfixturevalue(broker)
    server.clear()
    is_redis = isinstance(server, Redis)
    conf = server.returning(RETURN) if isinstance(server, Redis) else server.conf
    with PaymentWorkers(
        zoo,
        tmp_path,
        conf,
        KEYS,
        tasks=["pay"] if troubled else ["pay", "pay_again"],
        chance=random.Random(request.config.getoption("--soak-seed")),
        troubled=troubled,
        resend=RESEND if is_redis else math.inf,
    ) as workers:
        workers.send(count)
        workers.wait_done(300, every=every)
        workers.stop()
        for key in KEYS:
            zoo.wait_contenders(key, 0, timeout=2)
        print(workers.done)
        workers.assert_kept()
