"""Look for the programs that tests need, and install them where that is allowed; those that are named must be there."""

import contextlib
import sys
from pathlib import Path

from support import debian, promtool
from support.brokers import find_rabbitmq, find_redis
from support.browser.chromium import find_chromium
from support.ensemble import find_zookeeper
from support.mariadb import find_mariadb
from support.neighbours.curator import find_curator
from support.postgres import find_postgres

POLICY = Path("/usr/sbin/policy-rc.d")  # Debian's packages run it before they start the service that they bring
CLUSTER = Path("/etc/postgresql-common/createcluster.d/django-zklock-tests.conf")
FINDS = (find_zookeeper, find_postgres, find_mariadb, find_redis, find_rabbitmq, find_curator, find_chromium)
BY_NAME = {find.__name__.removeprefix("find_"): find for find in FINDS}


@contextlib.contextmanager
def quietly():
    no_services = debian.having(POLICY, "#!/bin/sh\nexit 101\n", unless=POLICY)
    no_cluster = debian.having(CLUSTER, "create_main_cluster = false\n", unless=CLUSTER.parents[1])
    with no_services, no_cluster:
        yield


if __name__ == "__main__":
    names = sys.argv[1:]
    debian.ensure(*(BY_NAME[name] for name in names or BY_NAME), installing=quietly, or_skip=not names)
    if not names:
        promtool.unpack()
