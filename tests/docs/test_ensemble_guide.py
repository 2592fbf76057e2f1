"""The guides for operators on three real servers: only ports, directories and host names of the pages are replaced."""

import re
from contextlib import closing

import pytest
from django.test import override_settings
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from support.certificates import WITH_NETTY, skip_without_tls
from support.docs import BLOCK, shell, text_of
from support.ensemble import JVM_OPTIONS, MAIN_CLASS, Server, find_classpath, find_java, four_letter, free_ports
from support.project import Project
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.exceptions import ZkLockError

pytestmark = pytest.mark.chaos

RUN = text_of("how-to/run-zookeeper.md")
LOOK_AFTER = text_of("how-to/look-after-zookeeper.md")
TROUBLES = text_of("how-to/troubleshooting.md")


def section(page, heading):
    (text,) = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    return str(text)


def commands(page, heading):
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", section(page, heading), re.MULTILINE)


def zoo_cfg():
    """Return the lines for a server. Those for TLS replace some of the first."""
    blocks = re.findall(r"^```ini\n# zoo\.cfg\n(.*?)^```$", RUN, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    lines = {line.partition("=")[0]: line for block in blocks for line in block.splitlines()}
    # The class that these lines name is not in Debian's package.
    return [line for name, line in lines.items() if not name.startswith("metricsProvider.")]


class Guide:
    """The ensemble of the pages on this machine. All its servers are `localhost`, and have the same certificate."""

    def __init__(self, directory):
        self.directory = directory
        self.servers = []
        ports = iter(free_ports(12))
        self._ports = [[next(ports) for _ in range(4)] for _ in range(3)]
        self._replaced = {"zk1": "localhost", "/etc/zookeeper/tls": f"{directory}/tls"}
        self._replaced["/etc/myproject/zookeeper"] = str(directory)
        for number, (plain, tls, quorum, election) in enumerate(self._ports, 1):
            self._replaced[f"zk{number}:2281"] = f"localhost:{tls}"
            self._replaced[f"zk{number}:2888:3888;127.0.0.1:2181"] = f"localhost:{quorum}:{election};127.0.0.1:{plain}"

    def here(self, text, **more):
        replaced = {**self._replaced, **more}
        pattern = "|".join(re.escape(name) for name in sorted(replaced, key=len, reverse=True))
        return re.sub(pattern, lambda match: replaced[match[0]], text)

    def run(self, command):
        return shell("-c", self.here(command), directory=self.directory)

    def make_certificates(self, project="myproject"):
        for command in commands(RUN, "Make certificates"):
            if project == "myproject" or "myproject" in command:
                done = self.run(command.replace("myproject", project))
                assert done.returncode == 0, done.stderr

    def start(self):
        for copy in commands(RUN, "Turn on TLS at the servers"):
            done = self.run(copy.replace("sudo ", "").replace("--owner zookeeper ", ""))
            assert done.returncode == 0, done.stderr
        classpath = ":".join(map(str, find_classpath()))
        command = [find_java(), *JVM_OPTIONS, WITH_NETTY, "-cp", classpath, MAIN_CLASS, "zoo.cfg"]
        for number, (plain, tls, *_) in enumerate(self._ports, 1):
            home = self.directory / f"zk{number}"
            (home / "data").mkdir(parents=True)
            (home / "data" / "myid").write_text(f"{number}\n")
            own = {"=/datalog": f"={home}/datalog", "=/data": f"={home}/data", "=2281": f"={tls}"}
            (home / "zoo.cfg").write_text("\n".join(self.here(line, **own) for line in zoo_cfg()))
            self.servers.append(Server(number=number, port=plain, directory=home, command=command, env={}))
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready(120)

    def close(self):
        for server in self.servers:
            server.stop()

    def settings(self, project="myproject", **changed):
        """Return `ZKLOCK` as the page shows it; with the certificate of another project, if one is named."""
        names = {}
        exec(self.here(dict(BLOCK.findall(RUN))["settings.py"], **{"myproject.": f"{project}."}), names)
        return {**names["ZKLOCK"], **changed}

    def problem(self, settings):
        with override_settings(ZKLOCK=settings), pytest.raises(ZkLockError) as caught, zk_lock("report"):
            pass
        return str(caught.value)


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    skip_without_tls()
    with closing(Guide(tmp_path_factory.mktemp("guide"))) as guide:
        guide.make_certificates()
        guide.start()
        yield guide


@pytest.fixture(autouse=True)
def password(monkeypatch):
    monkeypatch.setenv("ZOOKEEPER_PASSWORD", "s3cr3t-word")


def test_the_servers_answer_as_the_page_says(guide):
    assert sorted(str(server.mode()) for server in guide.servers) == ["follower", "follower", "leader"]
    shown = re.findall(r"^\$ echo (\w+) \| nc zk1 2181.*\n(.+)$", section(RUN, "Check it"), re.MULTILINE)
    assert len(shown) == 2
    for word, line in shown:
        assert any(line in four_letter("127.0.0.1", server.port, word) for server in guide.servers)
    assert "not in the whitelist" in four_letter("127.0.0.1", guide.servers[0].port, "cons")


def test_a_client_needs_a_certificate(guide):
    (connect,) = (command for command in commands(RUN, "Check TLS") if command.startswith("openssl"))
    done = guide.run(connect)
    assert (done.returncode, "CN = localhost" in done.stderr, "Verification: OK" in done.stderr) == (0, True, True)
    assert guide.run(connect.replace("-cert myproject.pem -key myproject.key", "")).returncode != 0
    with override_settings(ZKLOCK=guide.settings()), zk_lock("report") as hold:
        hold.check()


def test_the_commands_that_check_a_project_find_nothing(guide, tmp_path):
    project = Project(tmp_path)
    settings = tmp_path / "project_settings.py"
    settings.write_text(settings.read_text() + guide.here(dict(BLOCK.findall(RUN))["settings.py"]))
    check, doctor = (command for command in commands(RUN, "Check TLS") if command.startswith("python manage.py"))
    assert "zklock." not in project.run(*check.split()[1:]).stderr
    done = project.run(*doctor.split()[1:])
    lines = re.findall(r"^(\w+) +(.{17})(.*)$", done.stdout, re.MULTILINE)
    results = {name.strip(): (result, text) for result, name, text in lines}
    # a busy machine is slow to write, and then `doctor` warns
    assert {result for name, (result, _) in results.items() if name != "write"} == {"ok", "info"}, done.stdout
    assert "to 127.0.0.1:" in results["connection"][1]
    assert "digest:myproject:" in results["access list"][1]


def test_the_messages_of_troubleshooting_are_those_of_a_client(guide):
    settings, plain = guide.settings(), guide.servers[0].address.replace("127.0.0.1", "localhost")
    (tls, *_) = re.findall(r"localhost:\d+", settings["URL"])
    mistakes = {
        "it speaks no TLS; use its port for TLS": {"URL": f"zk+tls://{plain}/myproject"},
        "it closes connections without an answer; ...": {"URL": f"zk://{tls}/myproject", "TLS": None},
        "its TLS certificate is not valid here: ": {"URL": f"zk+tls://127.0.0.1:{tls.split(':')[1]}/myproject"},
        "set or renew CERT": {"TLS": {"CA": settings["TLS"]["CA"]}},
    }
    assert "| `it closes connections without an answer; ...` |" in TROUBLES, "the others name their remedy"
    for message, changed in mistakes.items():
        problem = guide.problem({**settings, **changed, "CONNECT_TIMEOUT": 1})
        assert message.removesuffix("...") in problem, problem


def test_the_locks_belong_to_the_account_and_to_the_certificate(guide):
    guide.make_certificates("other")
    stranger = guide.settings("other", AUTH=None, ACL="open")
    tls = stranger["TLS"]
    hosts = re.sub(r"^zk\+tls://|/.*", "", stranger["URL"])
    client = KazooClient(hosts, use_ssl=True, ca=tls["CA"], certfile=tls["CERT"], keyfile=tls["KEY"])
    client.start(30)
    try:
        for owners in ({"ROOT": "/both"}, {"ROOT": "/certificate", "AUTH": None}):
            with override_settings(ZKLOCK=guide.settings(**owners)), zk_lock("report") as hold:
                client.sync(hold.path)  # or a server that lags behind would not have the node yet
                for refused in (client.get, client.delete):
                    with pytest.raises(NoAuthError):
                        refused(hold.path)
            problem = guide.problem({**stranger, **owners})
            assert "ZooKeeper refused the request create2 of " in problem
            assert ": NoAuthError (" in problem
        for owner in (guide.settings(AUTH=None), {**stranger, "AUTH": guide.settings()["AUTH"]}):
            with override_settings(ZKLOCK={**owner, "ROOT": "/both"}), zk_lock("report") as hold:
                hold.check()
    finally:
        client.stop()
        client.close()


def test_locks_go_on_while_one_server_after_the_other_is_restarted(guide):
    upgrade = section(LOOK_AFTER, "Upgrade one server at a time")
    (line,) = re.findall(r"`(zk_\w+ \d)`", upgrade)
    assert "the leader last" in upgrade
    assert "`Mode: follower`" in upgrade

    def in_step():
        leaders = [server for server in guide.servers if server.mode() == "leader"]
        return bool(leaders) and line in four_letter("127.0.0.1", leaders[0].port, "mntr").replace("\t", " ")

    with override_settings(ZKLOCK=guide.settings()), zk_lock("report", abort_on="lost") as kept:
        for server in sorted(guide.servers, key=lambda server: server.mode() == "leader"):
            server.stop()
            with zk_lock("invoice", timeout=60) as hold:
                hold.check()
            server.start()
            assert eventually(server.mode, 60) == "follower"
            eventually(in_step, 60)
        kept.check()
