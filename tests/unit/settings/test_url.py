"""The reader of `zk://` URLs: it takes what the format allows, refuses the rest, and never repeats a credential."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.conf.errors import InvalidValue
from django_zklock.conf.url import Address, host_port, is_loopback, parse, znode_path

PORTS = st.integers(1, 65535)
NAMES = st.from_regex(r"[a-z0-9_]([a-z0-9_.-]{0,20}[a-z0-9_])?", fullmatch=True)
HOSTS = st.tuples(NAMES | st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(str), PORTS)
SECRETS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
PARTS = st.text("abcxyz019_-.~% é", min_size=1, max_size=10).filter(lambda part: part not in (".", ".."))


@given(
    hosts=st.lists(HOSTS, min_size=1, max_size=5),
    parts=st.lists(PARTS, max_size=4),
    user=SECRETS.filter(lambda user: ":" not in user),
    password=SECRETS,
    query=st.dictionaries(SECRETS, SECRETS, max_size=3),
)
def test_parse_reverses_writing(
    hosts: list[tuple[str, int]], parts: list[str], user: str, password: str, query: dict[str, str]
) -> None:
    """Every URL that is written by the rules is read as what went into it."""
    chroot = "".join(f"/{part}" for part in parts)
    assert parse(_url(hosts, chroot, user, password, query)) == Address(
        hosts=tuple(hosts), chroot=chroot, credential=f"{user}:{password}", tls=False, query=tuple(query.items())
    )


def _url(hosts: list[tuple[str, int]], chroot: str, user: str, password: str, query: dict[str, str]) -> str:
    pairs = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in query.items())
    places = ",".join(host_port(*host) for host in hosts)
    return f"zk://{quote(user, safe='')}:{quote(password, safe='')}@{places}{quote(chroot)}?{pairs}"


@given(st.text())
def test_anything_is_read_or_refused(text: str) -> None:
    """No text, however odd, gets another error out of the parser than its own."""
    for url in (text, f"zk://{text}", f"zk://h/{text}", f"zk://h?{text}", f"zk://[{text}"):
        try:
            assert parse(url).hosts
        except InvalidValue as error:
            assert str(error)
            assert error.hint


@given(
    password=st.text(st.sampled_from("sS3@:/?#%[],&=. \ud800"), min_size=1).map(lambda tail: f"hunter2{tail}hunter2"),
    rest=st.sampled_from(["@h1", "@h1:2181/x", "h1", "", "@", "/@h1", "@h1?session_timeout=9", "@h1:x", "@[::1"]),
    scheme=st.sampled_from(["zk://", "zk+tls://", "zkk://", "", "zk:/"]),
)
def test_password_never_shows_in_errors(password: str, rest: str, scheme: str) -> None:
    """However wrong the URL is, and whatever of its password is not escaped, no error quotes a piece of it."""
    try:
        parse(f"{scheme}user:{password}{rest}")
    except InvalidValue as error:
        assert "hunter2" not in f"{error} {error.hint}"


def test_port_defaults_to_2181_for_each_host() -> None:
    """A host without a port has ZooKeeper's usual one, whichever place in the list it takes."""
    assert parse("zk://h1,h2:2182,[::1],[fe80::1]:2183").hosts == (
        ("h1", 2181), ("h2", 2182), ("::1", 2181), ("fe80::1", 2183),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("url", "tls"), [("zk://h", False), ("zookeeper://h", False), ("zk+tls://h", True), ("ZK+TLS://h", True)]
)
def test_scheme_says_whether_tls_is_on(url: str, tls: bool) -> None:
    """There are three schemes, of which one turns TLS on."""
    assert parse(url).tls is tls


def test_white_space_around_a_url_is_no_part_of_it() -> None:
    """The line break that a file of secrets ends with does no harm."""
    assert parse(" zk://h/app\n") == parse("zk://h/app")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "does not begin"),
        ("h1:2181", "does not begin"),
        ("http://h1", "does not begin"),
        ("zk://", "names no host"),
        ("zk:///app", "names no host"),
        ("zk://user:pw@", "names no host"),
        ("zk://h1,,h2", "no valid host:port at host 2"),
        ("zk://h1,", "no valid host:port at host 2"),
        ("zk://:2181", "no valid host:port at host 1"),
        ("zk://h 1", "no valid host:port at host 1"),
        ("zk://h1:", "no valid host:port at host 1"),
        ("zk://h1:0", "no valid host:port at host 1"),
        ("zk://h1,h2:65536", "no valid host:port at host 2"),
        ("zk://h1:2 181", "no valid host:port at host 1"),
        ("zk://h1:²", "no valid host:port at host 1"),
        ("zk://h1:" + "9" * 5000, "no valid host:port at host 1"),
        ("zk://::1", "no valid host:port at host 1"),
        ("zk://[::1", "no valid host:port at host 1"),
        ("zk://[h1]", "no valid host:port at host 1"),
        ("zk://[::1]2181", "no valid host:port at host 1"),
        ("zk://[::1]:", "no valid host:port at host 1"),
        ("zk://user@h1", "no user:password"),
        ("zk://user:@h1", "no user:password"),
        ("zk://:pw@h1", "no user:password"),
        ("zk://us%3Aer:pw@h1", "colon within the user's name"),
        ("zk://user:p%FFw@h1", "not UTF-8"),
        ("zk://h1/\ud800", "not UTF-8"),
        ("zk://user:p/w@h1", "@ after its first /"),
        ("zk://h1/a//b", "empty, '.' or '..' part"),
        ("zk://h1/a/../b", "empty, '.' or '..' part"),
        ("zk://h1/a/%2e%2E", "empty, '.' or '..' part"),
        ("zk://h1/a%00", "character"),
        ("zk://h1/a/%F0%9F%94%92", "character"),
        ("zk://h1/zookeeper/quota", "below /zookeeper"),
    ],
)
def test_what_the_format_does_not_allow_is_refused(url: str, says: str) -> None:
    """A URL that is wrong is refused, in words that say where."""
    with pytest.raises(InvalidValue) as caught:
        parse(url)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("path", "same"), [("", ""), ("/", ""), ("/a/", "/a"), ("/a/b", "/a/b"), ("/zookeepers", "/zookeepers")]
)
def test_path_loses_the_slash_at_its_end(path: str, same: str) -> None:
    """Paths are joined by putting one after the other, so none ends with a slash."""
    assert znode_path(path) == same


def test_relative_path_is_refused() -> None:
    """A path is never guessed to be absolute."""
    with pytest.raises(InvalidValue, match="not absolute"):
        znode_path("zklock")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("LOCALHOST.", True),
        ("zk.localhost", True), ("10.0.0.1", False), ("::2", False), ("localhost.example.org", False), ("zk1", False),
    ],
)  # fmt: skip
def test_loopback_is_told_without_a_name_server(host: str, loopback: bool) -> None:
    """Only what cannot be another machine counts as this one."""
    assert is_loopback(host) is loopback
