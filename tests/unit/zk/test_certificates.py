"""When certificates are valid, and the check that warns before the end of one."""

import ssl
from datetime import datetime, timedelta, timezone

import pytest
from django.core import checks
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st
from support.certificates import authority, dated, skip_without_tls

from django_zklock.core.zk.certificates import validities, validity


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    skip_without_tls()
    made = tmp_path_factory.mktemp("pki")
    authority(made, "ca")
    return made


@pytest.mark.parametrize("years", [1, 40], ids=["two digits for the year", "four digits, as after 2049"])
def test_the_dates_of_a_certificate_are_read(folder, years):
    own = dated(folder, f"own-{years}", "ca", -2, 365 * years)
    (dates,) = validities(own.read_text())
    now = datetime.now(timezone.utc)
    assert abs(now - timedelta(days=2) - dates.begins) < timedelta(minutes=5)
    assert abs(now + timedelta(days=365 * years) - dates.ends) < timedelta(minutes=5)


def test_each_certificate_of_a_file_is_read(folder):
    own = dated(folder, "chained", "ca", -2, 9)
    assert len(validities(own.read_text() + (folder / "ca.pem").read_text())) == 2
    assert validities("no certificate") == []


@given(st.binary(max_size=60))
def test_other_bytes_are_no_certificate(data):
    assert validity(data) is None


def test_a_certificate_that_is_cut_is_none(folder):
    whole = ssl.PEM_cert_to_DER_cert((folder / "ca.pem").read_text())
    for size in range(0, len(whole) // 3, 3):
        assert validity(whole[:size]) is None
    assert validity(whole) is not None


@pytest.mark.parametrize(
    ("begins", "ends", "warns"),
    [(-2, 9, True), (-2, 2, True), (-2, -1, True), (1, 90, True), (-2, 15, False)],
    ids=["nine days", "two days", "ended", "not yet valid", "fifteen days"],
)
def test_the_check_for_deployment_warns_before_a_certificate_ends(folder, begins, ends, warns):
    own = dated(folder, "checked", "ca", begins, ends)
    files = {"CA": str(folder / "ca.pem"), "CERT": str(own), "KEY": str(own.with_suffix(".key"))}
    with override_settings(ZKLOCK={"URL": "zk+tls://localhost/test", "TLS": files}):
        messages = checks.run_checks(tags=["zklock"])
    assert [message.id for message in messages] == ["zklock.W014"] * warns
    assert all("The certificate of CERT" in message.msg for message in messages)


def test_the_end_of_an_authority_is_that_of_its_last_certificate(folder):
    """A file may have an old authority, and the new one."""
    old = dated(folder, "old-authority", "ca", -2, 2)
    both = folder / "both-authorities.pem"
    both.write_text(old.read_text() + (folder / "ca.pem").read_text())
    for ca, warns in ((both, False), (old, True)):
        with override_settings(ZKLOCK={"URL": "zk+tls://localhost/test", "TLS": {"CA": str(ca)}}):
            assert [message.id for message in checks.run_checks(tags=["zklock"])] == ["zklock.W014"] * warns
