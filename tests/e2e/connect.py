"""Hosts that can not be reached: the message names the host and the stage, no rank starts anywhere, exit code 4."""

import re
import socket
import threading
import time

from harness import HOSTS, Run, check, equal, ssh_config_variant

UNREACHABLE = 4
STARTED = "touch ~/started"  # proof that no rank ran on the hosts that were fine


def expect_refused(bed, run, where, stage, seconds=10):
    equal(run.wait(seconds), UNREACHABLE, "exit code")
    run.expect(rf"^{re.escape(where)}: {stage}: \S")
    said = {line.split(":")[0] for line in run.text().splitlines() if re.match(r"h[\d\[][^ ]*: ", line)}
    equal(said, {where}, "hosts about which something is said")
    equal(hosts_that_started(bed), [], "hosts where a rank ran")
    bed.expect_nothing_left(3)


def hosts_that_started(bed):
    return [host for host in HOSTS if "started" in bed.run_in(host, "ls")]


def known_hosts_with(bed, run_folder, change):
    """known_hosts of the bed with each line through `change(host, line)`; None drops a line."""
    lines = [change(line.split(",")[0], line) for line in bed.bed.known_hosts.read_text().splitlines()]
    path = run_folder / "known_hosts"
    path.write_text("".join(f"{line}\n" for line in lines if line))
    return path


def unknown_and_changed(bed, folder, changed):
    """h02 is unknown, or has (in the file) the key of h01."""
    first = bed.bed.known_hosts.read_text().splitlines()[0].split()
    def change(host, line):
        if host != "h02":
            return line
        return " ".join([line.split()[0], *first[1:3]]) if changed else None
    return known_hosts_with(bed, folder, change)


def scenario_host_key_unknown(bed):
    settings = {"runner.ssh.known_hosts_file": unknown_and_changed(bed, bed.shared, changed=False)}
    with Run(bed, "sh", "-c", STARTED, settings=settings) as run:
        expect_refused(bed, run, "h02", "host_key")
        run.expect(r"SHA256:[A-Za-z0-9+/]{43}")
        run.expect(r"ssh-keyscan|known_hosts")  # how to trust it


def scenario_host_key_changed(bed):
    settings = {"runner.ssh.known_hosts_file": unknown_and_changed(bed, bed.shared, changed=True),
                "runner.ssh.accept_new": "true"}  # accepts new ones, never changed ones
    with Run(bed, "sh", "-c", STARTED, settings=settings) as run:
        expect_refused(bed, run, "h02", "host_key")
        run.expect(r"(?i)changed|differs|not the (one|key)")


def scenario_host_key_accepted_when_new(bed):
    path = unknown_and_changed(bed, bed.shared, changed=False)
    settings = {"runner.ssh.known_hosts_file": path, "runner.ssh.accept_new": "true"}
    with Run(bed, "sh", "-c", STARTED, settings=settings) as run:
        equal(run.wait(10), 0, "exit code")
    equal(hosts_that_started(bed), HOSTS, "hosts where a rank ran")
    check(len(path.read_text().splitlines()) == 4, "the accepted key was not recorded")
    with Run(bed, "true", settings={"runner.ssh.known_hosts_file": path}) as run:
        equal(run.wait(10), 0, "exit code of the next run, which accepts nothing")


def scenario_auth_refused(bed):
    """Hosts that say the same share a line."""
    keys = {host: {"IdentityFile": bed.bed.host_dir(1) / "host_key"} for host in HOSTS[1:]}
    with Run(bed, "sh", "-c", STARTED, ssh_config=ssh_config_variant(bed, bed.shared, **keys)) as run:
        expect_refused(bed, run, "h[02-04]", "auth")


def scenario_host_down(bed):
    bed.link("h04", "down")
    with Run(bed, "sh", "-c", STARTED, settings={"runner.ssh.connect_timeout": "1s"}) as run:
        expect_refused(bed, run, "h04", "connect", seconds=8)


def scenario_port_closed(bed):
    config = ssh_config_variant(bed, bed.shared, h03={"Port": "2"})
    with Run(bed, "sh", "-c", STARTED, ssh_config=config) as run:
        expect_refused(bed, run, "h03", "connect")


def scenario_sshd_says_nothing(bed):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = ssh_config_variant(bed, bed.shared,
                                    h02={"HostName": "127.0.0.1", "Port": str(silent.getsockname()[1])})
        began = time.monotonic()
        with Run(bed, "sh", "-c", STARTED, ssh_config=config,
                 settings={"runner.ssh.handshake_timeout": "1s"}) as run:
            expect_refused(bed, run, "h02", "handshake", seconds=6)
        check(time.monotonic() - began >= 0.9, "it did not wait for the handshake")


def scenario_sshd_says_nonsense(bed):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
                time.sleep(1)
        threading.Thread(target=answer, daemon=True).start()
        config = ssh_config_variant(bed, bed.shared,
                                    h02={"HostName": "127.0.0.1", "Port": str(server.getsockname()[1])})
        with Run(bed, "sh", "-c", STARTED, ssh_config=config) as run:
            expect_refused(bed, run, "h02", "handshake", seconds=6)


def scenario_name_does_not_resolve(bed):
    config = ssh_config_variant(bed, bed.shared, h02={"HostName": "no-such-host.invalid"})
    with Run(bed, "sh", "-c", STARTED, ssh_config=config) as run:
        expect_refused(bed, run, "h02", "resolve")


def scenario_every_failure_in_one_run(bed):
    config = ssh_config_variant(bed, bed.shared, h01={"HostName": "no-such-host.invalid"}, h02={"Port": "2"},
                                h03={"IdentityFile": bed.bed.host_dir(1) / "host_key"})
    with Run(bed, "sh", "-c", STARTED, ssh_config=config) as run:
        equal(run.wait(10), UNREACHABLE, "exit code")
        for pattern in (r"^h01: resolve", r"^h02: connect", r"^h03: auth"):
            run.expect(pattern)
        run.expect_not(r"^h04:")
        bed.expect_nothing_left(3)


def scenario_through_a_jump_host(bed):
    """Included file, ProxyJump: h03 and h04 are reached through h01."""
    inner = ssh_config_variant(bed, bed.shared, h03={"ProxyJump": "h01"}, h04={"ProxyJump": "h01"})
    outer = bed.shared / "outer"
    outer.write_text(f"Include {inner}\n")
    with Run(bed, "sh", "-c", "echo $RANK $(hostname) ${SSH_CONNECTION%% *}", ssh_config=outer, slots=1) as run:
        equal(run.wait(20), 0, "exit code")
        equal(run.log(0).split()[1], b"h01", "host of rank 0")
        equal(run.log(3).split()[1], b"h04", "host of rank 3")
