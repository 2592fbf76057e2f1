"""The parser of `zk://` URLs reads valid ones, refuses all others, and never quotes a credential."""

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.conf.table import InvalidValue
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
def test_parse_reverses_writing(hosts, parts, user, password, query):
    chroot = "".join(f"/{part}" for part in parts)
    pairs = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in query.items())
    addresses = ",".join(host_port(*host) for host in hosts)
    url = f"zk://{quote(user, safe='')}:{quote(password, safe='')}@{addresses}{quote(chroot)}?{pairs}"
    assert parse(url) == Address(
        hosts=tuple(hosts), chroot=chroot, credential=f"{user}:{password}", tls=False, query=tuple(query.items())
    )


@given(st.text())
def test_anything_is_read_or_refused(text):
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
def test_password_never_shows_in_errors(password, rest, scheme):
    try:
        parse(f"{scheme}user:{password}{rest}")
    except InvalidValue as error:
        assert "hunter2" not in f"{error} {error.hint}"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("zk://h", Address(hosts=(("h", 2181),), chroot="")),
        ("zookeeper://h", Address(hosts=(("h", 2181),), chroot="")),
        ("zk://h/a%2Cb%20c", Address(hosts=(("h", 2181),), chroot="/a,b c")),
        ("zk+tls://h", Address(hosts=(("h", 2181),), chroot="", tls=True)),
        ("ZK+TLS://h", Address(hosts=(("h", 2181),), chroot="", tls=True)),
        (" zk://h/app\n", Address(hosts=(("h", 2181),), chroot="/app")),  # a file of secrets ends with a line break
        (
            "zk://h1:2182,[::1],[fe80::1]:2183",
            Address(hosts=(("h1", 2182), ("::1", 2181), ("fe80::1", 2183)), chroot=""),
        ),
    ],
)
def test_scheme_and_port_have_defaults(url, address):
    assert parse(url) == address


INVALID = {
    "does not begin": ["", "h1:2181", "http://h1"],
    "names no host": ["zk://", "zk:///app", "zk://user:pw@"],
    "no valid host:port at host 1": [
        *("zk://:2181", "zk://h 1", "zk://h1:", "zk://h1:0", "zk://h1:2 181", "zk://h1:²", "zk://h1:" + "9" * 5000),
        *("zk://::1", "zk://[::1", "zk://[h1]", "zk://[::1]2181", "zk://[::1]:"),
    ],
    "no valid host:port at host 2": ["zk://h1,,h2", "zk://h1,", "zk://h1,h2:65536"],
    "no user:password": ["zk://user@h1", "zk://user:@h1", "zk://:pw@h1"],
    "not UTF-8": ["zk://user:p%FFw@h1", "zk://h1/\ud800"],
    "@ after its first /": ["zk://user:p/w@h1"],
    "a path that ZooKeeper does not allow": [
        *("zk://h1/a//b", "zk://h1/a/../b", "zk://h1/a/%2e%2E", "zk://h1/a%00", "zk://h1/a/%F0%9F%94%92"),
        "zk://h1/zookeeper/quota",
    ],
    "has ',' in its path": ["zk://h1:2181/app,h2:2181/app", "zk://h1,h2/a,b"],
    "has ';' in its path": ["zk://h1/app;h2/app?session_timeout=10"],
    "has ' ' in its path": ["zk://h1/app zk://h2/app"],
    "has '$' in its path": [*("zk://h1/${ENV}", "zk://h1/$ENV", "zk://h1/shop-$(ENV)", "zk://h1/shop-${ENV:-dev}/a")],
    "has '{' in its path": ["zk://h1/{env}", "zk://h1/{{ env }}"],
    "has '%' in its path": ["zk://h1/%ENV%", "zk://h1/%(env)s"],
    "has '<' in its path": ["zk://h1/<env>"],
    "has '#' in its path": ["zk://h1/#{env}", "zk://h1/shop#production"],
    "has '\"' in its path": ['zk://h1/shop"'],
    "no valid host:port at host 1 ": ["zk://${HOST}/a", "zk://$HOST/a"],
}


@pytest.mark.parametrize(("url", "says"), [(url, says) for says, urls in INVALID.items() for url in urls])
def test_an_invalid_url_is_refused_with_its_invalid_part(url, says):
    with pytest.raises(InvalidValue) as caught:
        parse(url)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("path", "same"), [("", ""), ("/", ""), ("/a/", "/a"), ("/a/b", "/a/b"), ("/zookeepers", "/zookeepers")]
)
def test_path_loses_the_slash_at_its_end(path, same):
    assert znode_path(path) == same
    with pytest.raises(InvalidValue, match="does not allow"):
        znode_path("zklock")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("zk.localhost", True),
        ("10.0.0.1", False),
        ("::2", False),
        ("localhost.example.org", False),
        ("zk1", False),
    ],
)
def test_a_loopback_host_is_recognized_without_a_name_server(host, loopback):
    """Only an address that is certainly this machine counts."""
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("path", ["/a%24b", "/a%7Bb%7D", "/ü", "/shop:a~b_c-d.e"])
def test_a_path_with_encoded_signs_is_read(path):
    assert parse(f"zk://h{path}").chroot == unquote(path)


def test_a_password_with_signs_of_variables_is_read():
    for password in ("$hidden", "a${b", "100%", "<3"):
        assert parse(f"zk://user:{quote(password)}@h").credential == f"user:{password}"
