"""What needs attention, by names of its own for those who import no more of the report."""

from __future__ import annotations

from django_zklock.report.incident import Incident
from django_zklock.report.verdict import look as look

describe = Incident.describe
