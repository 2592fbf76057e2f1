"""Two checks for django-health-check 4 or newer, named as `django_zklock.contrib.health_check.ZooKeeper`."""

from __future__ import annotations

import dataclasses

from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from django_zklock import inspection
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.report import background


@dataclasses.dataclass
class ZooKeeper(HealthCheck):  # type: ignore[misc]
    """Whether a quorum of ZooKeeper's servers answers this process, so that locks can be granted."""

    def run(self) -> None:
        """Raise `ServiceUnavailable` if it does not. Anybody may read its text, so it has no address; the log has."""
        try:
            inspection.check_quorum()
        except ZooKeeperUnavailable as error:
            raise ServiceUnavailable("ZooKeeper does not answer") from error


@dataclasses.dataclass
class Incidents(HealthCheck):  # type: ignore[misc]
    """Whether the last look at all locks and servers has found something that needs attention."""

    def run(self) -> None:
        """Raise `ServiceWarning` with the causes if it has, or if there was no look in the last two minutes."""
        counts = background.last.counts()
        causes = [cause for cause, count in counts.items() if count]
        if not counts:
            raise ServiceWarning("the locks were not looked at yet")
        if causes:
            raise ServiceWarning(", ".join(causes))
