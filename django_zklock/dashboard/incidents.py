"""The names of the report that other code imports."""

from __future__ import annotations

from django_zklock.report.incident import Incident
from django_zklock.report.verdict import look as look

describe = Incident.describe
