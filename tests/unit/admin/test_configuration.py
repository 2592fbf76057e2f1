"""The members of the ensemble, in the configuration as servers write it, and which of them are in `URL`."""

import pytest

from django_zklock.inspection.configuration import MAX_SERVERS, ConfiguredServer, is_weighted, matches, parse

STATIC = b"""server.1=zk1:2888:3888:participant
server.2=zk2:2888:3888:participant
server.3=zk3:2888:3888:observer
version=0"""
ADDRESSES = {
    ("zk1", 2181): {("10.0.0.1", 2181)},
    ("zk2", 2181): {("10.0.0.2", 2181)},
    ("zk3", 2181): {("10.0.0.3", 2181)},
    ("zk1", 0): {("10.0.0.1", 0)},
    ("zk2", 0): {("10.0.0.2", 0)},
    ("zk3", 0): {("10.0.0.3", 0)},
    ("same", 1): {("127.0.0.1", 1)},
    ("same", 2): {("127.0.0.1", 2)},
    ("same", 3): {("127.0.0.1", 3)},
    ("same", 0): {("127.0.0.1", 0)},
}


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        ("zk1:2888:3888:participant", [("zk1", 0)]),
        ("zk1:2888:3888:participant;0.0.0.0:2181", [("zk1", 2181)]),
        ("zk1:2888:3888:participant;2181", [("zk1", 2181)]),
        ("zk1:2888:3888:participant;public:2181", [("public", 2181), ("zk1", 2181)]),
        ("zk1:2888:3888:participant;[0:0:0:0:0:0:0:0]:2181", [("zk1", 2181)]),
        ("[0:0:0:0:0:0:0:1]:2888:3888:participant;[0:0:0:0:0:0:0:1]:2181", [("::1", 2181)]),
        ("zk1a:2888:3888|zk1b:2888:3888:participant;2181", [("zk1a", 2181), ("zk1b", 2181)]),
        ("0.0.0.0:2888:3888:participant;0.0.0.0:2181", []),
        ("0.0.0.0:2888:3888:participant", []),
        ("zk1:2888:3888:participant;zk1:port", [("zk1", 0)]),
        ("zk1:2888:3888:participant;zk1:99999", [("zk1", 0)]),
        ("zk1", []),
        ("", []),
    ],
)
def test_a_member_may_be_at_each_of_its_addresses(line, hosts):
    configured = parse(f"server.7={line}\n".encode())
    assert [(server.name, list(server.hosts)) for server in configured] == ([("server.7", hosts)] if line else [])


def test_observers_do_not_vote():
    assert [server.votes for server in parse(STATIC)] == [True, True, False]


@pytest.mark.parametrize("config", [b"", b"version=0", b"server.=x", b"server.x=a:1:2", b"\xff\xfe\x00", b"=" * 5000])
def test_other_data_have_no_members(config):
    assert parse(config) == ()


def test_hostile_data_are_bounded_and_printable():
    lines = [f"server.{number}=\x1b[2J{'x' * 900}:1:2:participant" for number in range(10 * MAX_SERVERS)]
    configured = parse("\n".join(lines).encode())
    assert len(configured) == MAX_SERVERS
    assert all(str(server).isprintable() and len(str(server)) < 300 for server in configured)


@pytest.mark.parametrize("line", ["group.1=1:2:3", "weight.1=0"])
def test_groups_and_weights_are_seen(line):
    assert is_weighted(STATIC + b"\n" + line.encode())
    assert not is_weighted(STATIC)


def test_servers_are_found_by_their_machines_if_the_ports_for_clients_are_not_told():
    first, second, third = parse(STATIC)
    roles = {("zk3", 2181): "observer", ("zk1", 2181): "leader"}
    assert matches(roles, [first, second, third], ADDRESSES) == {("zk3", 2181): third, ("zk1", 2181): first}


def test_several_servers_of_one_machine_are_as_many_members():
    configured = [
        ConfiguredServer(name=f"server.{number}", hosts=(("same", 0),), votes=number < 2) for number in range(3)
    ]
    roles = {("same", 1): "", ("same", 2): "observer", ("same", 3): "follower"}
    known = matches(roles, configured, ADDRESSES)
    assert known[("same", 2)] is configured[2], "the only one that does not vote"
    assert {known[("same", 1)].name, known[("same", 3)].name} == {"server.0", "server.1"}


def test_a_server_at_another_port_is_not_the_member():
    server = ConfiguredServer(name="server.1", hosts=(("same", 1),), votes=True)
    assert matches({("same", 2): "follower"}, [server], ADDRESSES) == {}
    assert matches({("same", 1): "follower"}, [server], ADDRESSES) == {("same", 1): server}
