"""The TLS files of a coordinator, while they are renewed."""

import logging
import shutil

import pytest
from support.certificates import authority, certificate

from django_zklock.contrib.leases.certificate import Certificate

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture
def files(tmp_path):
    authority(tmp_path, "ca")
    certificate(tmp_path, "server", "ca")
    return tmp_path / "server.pem", tmp_path / "server.key"


def test_a_certificate_that_cannot_be_used_is_reported_once(files, caplog):
    tls = Certificate(*files, None)
    pem = files[0].read_bytes()
    files[0].unlink()
    for _ in range(3):
        tls.refresh()
    files[0].write_bytes(pem[:100])
    tls.refresh()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["No such file" in warnings[0], "cannot be used" in warnings[1], len(warnings)] == [True, True, 2]


def test_files_that_are_written_again_unchanged_are_no_new_certificate(files, caplog):
    caplog.set_level(logging.INFO)
    tls = Certificate(*files, None)
    files[0].write_bytes(files[0].read_bytes())
    tls.refresh()
    assert caplog.messages == []
