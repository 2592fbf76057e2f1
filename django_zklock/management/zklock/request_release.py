"""Ask the holder of a lock to release it. No work is aborted."""

from __future__ import annotations

import argparse

from django_zklock import operations
from django_zklock.exceptions import LockChangedHands
from django_zklock.inspection.info import to_json
from django_zklock.management.arguments import acting, add_answer, add_holder, add_name, add_reason, key_of
from django_zklock.management.output import Output, write_answer
from django_zklock.management.zklock.show import no_holder
from django_zklock.report.formatting import holder_text, key_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    add_reason(parser, "for the audit log, and for the holder")
    add_holder(parser)
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    key = key_of(options)
    try:
        asked = operations.request_release(key, guid=options.guid, token=options.token, **acting(options))
    except LockChangedHands as error:
        if options.guid or options.token:
            raise
        raise no_holder(key, str(error), options) from error
    answer = {"key": asked.key, "holders": to_json(asked.holders), "reason": asked.reason, "by": asked.by}
    texts = [
        f"Asked: {holder_text(holder)} (token {holder.token}) is asked to release {key_text(key)}."
        for holder in asked.holders
    ]
    write_answer(out, answer, *texts, json=options.json)
