"""What needs attention, by the names that the pages use."""

from __future__ import annotations

from django_zklock.report.incident import Incident
from django_zklock.report.verdict import CAUSES, Verdict, look
from django_zklock.report.verdict import as_json as report

__all__ = ["CAUSES", "Incident", "Verdict", "describe", "look", "report"]

describe = Incident.describe
