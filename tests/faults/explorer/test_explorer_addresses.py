"""The server's addresses: which it prints, and that it answers at these and refuses all others."""

import re
import socket
from ipaddress import ip_address

import pytest

pytest.importorskip("httpx2", reason="starlette's test client needs httpx2, which is not installed")
TestClient = pytest.importorskip("starlette.testclient", reason="the serve extra is not installed").TestClient
from telescope.explorer import server  # noqa: E402

ROUTES = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 192.168.7.0
        /24 link UNICAST
     |-- 192.168.7.20
        /32 host LOCAL
     |-- 10.1.2.3
        /32 host LOCAL
     |-- 192.168.7.255
        /32 link BROADCAST
"""
SIXES = """20010db8000000000000000000000007 02 40 00 80     eth0
fe80000000000000021122fffe334455 02 40 20 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
"""
FOURS = ["10.1.2.3", "192.168.7.20"]
NAMES = ["lectern", "lectern.local", "lectern.school.example"]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Let this machine have the addresses and the names above."""
    (tmp_path / "fib_trie").write_text(ROUTES)
    (tmp_path / "if_inet6").write_text(SIXES)
    monkeypatch.setattr(server, "IPV4_ROUTES", tmp_path / "fib_trie")
    monkeypatch.setattr(server, "IPV6_ADDRESSES", tmp_path / "if_inet6")
    monkeypatch.setattr(socket, "gethostname", lambda: "Lectern")
    monkeypatch.setattr(socket, "getfqdn", lambda: "lectern.school.example")


@pytest.fixture
def start(monkeypatch):
    """Start the server on a host without running it; return what it printed, and a client of its application."""
    applications = []
    config = server.uvicorn_config
    monkeypatch.setattr(server, "uvicorn_config", lambda made: (applications.append(made), config(made))[1])
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)

    def started(host, **more):
        links = []
        server.serve(server.Library({}), host=host, say=links.append, **more)
        return links, TestClient(applications[-1], follow_redirects=False)

    return started


def status(client, host):
    """Return the status of a request for the page at this host, from a page of the same host."""
    return client.get("/healthz", headers={"Host": host, "Origin": f"http://{host}"}).status_code


def hosts(links):
    return [re.match(r"http://(.+):\d+/\?token=", link)[1] for link in links]


@pytest.mark.parametrize(
    ("host", "printed"),
    [
        ("0.0.0.0", [*FOURS, *NAMES, "127.0.0.1"]),
        ("::", [*FOURS, "[2001:db8::7]", *NAMES, "127.0.0.1"]),
        ("[::]", [*FOURS, "[2001:db8::7]", *NAMES, "127.0.0.1"]),
    ],
)
def test_a_class_reaches_every_address_of_the_machine(machine, start, host, printed, caplog):
    links, client = start(host)
    port = re.search(r":(\d+)/", links[0])[1]
    assert hosts(links) == printed
    assert "open to the network" in caplog.text
    for name in (*printed, "localhost", "LECTERN"):
        assert status(client, f"{name}:{port}") == 200, name
    for other in ("evil.example", "lectern.evil.example", "192.168.7.255", "0.0.0.0", "[::]", "lectern."):
        assert status(client, f"{other}:{port}") == 403, other
    for other in ("lectern", "lectern:1", f"lectern:{port}.evil.example", f"evil.example@lectern:{port}"):
        assert status(client, other) == 403, other
    assert (status(client, f"[2001:db8::7]:{port}") == 200) == (host != "0.0.0.0")


def test_the_printed_link_opens_the_page(machine, start):
    links, client = start("0.0.0.0")
    for link in links:
        opened = client.get(link)
        assert opened.status_code == 303, link
        cookie = opened.headers["set-cookie"].partition(";")[0]
        host = re.match(r"http://(.+?)/", link)[1]
        assert client.get("/api/v1/runs", headers={"Host": host, "Cookie": cookie}).status_code == 200


def test_a_host_name_is_printed_and_answered(start, monkeypatch, caplog):
    resolve = socket.getaddrinfo
    at = {"lectern": "127.0.0.1"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **more: resolve(at.get(host, host), *a, **more))
    links, client = start("Lectern".lower())
    port = re.search(r":(\d+)/", links[0])[1]
    assert hosts(links) == ["lectern"]
    assert "lectern is 127.0.0.1 here, which no other machine can reach" in caplog.text
    assert [status(client, f"{name}:{port}") for name in ("lectern", "127.0.0.1", "evil.example")] == [200, 200, 403]


def test_one_address_of_the_network_is_answered_alone():
    assert server.host_names("lectern", ip_address("192.168.7.20")) == ["lectern", "192.168.7.20"]
    assert server.host_names("2001:DB8:0::7", ip_address("2001:db8::7")) == ["[2001:db8::7]"]


def test_browsers_leave_out_port_80():
    guard = server.Guard.at("token", 80, ["lectern"])
    assert guard.hosts == {"lectern", "lectern:80"}
    assert server.Guard.at("token", 8000, ["lectern"]).hosts == {"lectern:8000"}


@pytest.mark.parametrize("host", ["nowhere.invalid", "", "203.0.113.9", "a" * 300, "x\0y", "1.2.3.4.5"])
def test_a_host_that_is_not_here_is_named(host, command):
    code, printed, complaint = command("serve", "--host", host)
    assert (code, printed) == (2, "")
    assert complaint.count("\n") == 1
    assert "is no name or address of this machine" in complaint
    assert "--host 0.0.0.0" in complaint


def test_a_dual_socket_takes_ipv4():
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with server.listen("::", 0) as listener:
        client = socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5)
        client.close()


def test_a_machine_without_proc_is_asked_for_its_name(monkeypatch, tmp_path):
    monkeypatch.setattr(server, "IPV4_ROUTES", tmp_path / "none")
    monkeypatch.setattr(server, "IPV6_ADDRESSES", tmp_path / "none")
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.9")
    assert server.interface_addresses() == [ip_address("127.0.0.9")]
    monkeypatch.setattr(socket, "gethostname", lambda: "nowhere.invalid")
    assert server.interface_addresses() == []
