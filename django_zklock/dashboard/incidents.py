"""The names of the report that other code imports."""

from __future__ import annotations

from django_zklock.report import incident, verdict

describe = incident.Incident.describe
look = verdict.look
report = verdict.as_json
