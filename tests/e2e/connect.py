"""Hosts that can not be reached: the message names the host and the stage, no rank starts anywhere, exit code 4."""

import os
import re
import signal
import socket
import threading
import time

from exec import Exec
from harness import (HOSTS, SORTIE, Gates, Run, check, equal, in_time, parent_of, run_to_end, ssh_config_variant, wait_until,
                     whole_events)
from machine_clock import now

UNREACHABLE = 4
STARTED = "touch ~/started"  # shows whether a rank ran on a host


def expect_refused(bed, run, where, stage, seconds=40):
    equal(run.wait(seconds), UNREACHABLE, "exit code")
    run.expect(rf"^{re.escape(where)}: {stage}: \S")
    said = {line.split(":")[0] for line in run.text().splitlines() if re.match(r"h[\d\[][^ ]*: ", line)}
    equal(said, {where}, "hosts about which something is said")
    equal(hosts_that_started(bed), [], "hosts where a rank ran")
    bed.expect_nothing_left(10)


def hosts_that_started(bed):
    return [host for host in HOSTS if "started" in bed.run_in(host, "ls")]


def known_hosts_with(bed, run_folder, change):
    """Writes the bed's known_hosts with each line replaced by `change(host, line)`; None drops a line. Returns the path."""
    lines = [change(line.split(",")[0], line) for line in bed.bed.known_hosts.read_text().splitlines()]
    path = run_folder / "known_hosts"
    path.write_text("".join(f"{line}\n" for line in lines if line))
    return path


def unknown_and_changed(bed, folder, changed):
    """Returns a known_hosts in which h02 is unknown, or (changed=True) has the key of h01."""
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
        equal(run.wait(40), 0, "exit code")
    equal(hosts_that_started(bed), HOSTS, "hosts where a rank ran")
    check(len(path.read_text().splitlines()) == 4, "the accepted key was not recorded")
    with Run(bed, "true", settings={"runner.ssh.known_hosts_file": path}) as run:
        equal(run.wait(40), 0, "exit code of the next run, which accepts nothing")


def scenario_auth_refused(bed):
    """Hosts with the same error share a line."""
    keys = {host: {"IdentityFile": bed.bed.host_dir(1) / "host_key"} for host in HOSTS[1:]}
    with Run(bed, "sh", "-c", STARTED, ssh_config=ssh_config_variant(bed, bed.shared, **keys)) as run:
        expect_refused(bed, run, "h[02-04]", "auth")


def scenario_host_down(bed):
    bed.link("h04", "down")
    with Run(bed, "sh", "-c", STARTED, settings={"runner.ssh.connect_timeout": "5s"}) as run:
        expect_refused(bed, run, "h04", "connect")


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
                 settings={"runner.ssh.handshake_timeout": "6s"}) as run:  # also for the other hosts
            expect_refused(bed, run, "h02", "handshake")
        check(time.monotonic() - began >= 5.9, "it did not wait for the handshake")


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
            expect_refused(bed, run, "h02", "handshake")


def scenario_name_does_not_resolve(bed):
    config = ssh_config_variant(bed, bed.shared, h02={"HostName": "no-such-host.invalid"})
    with Run(bed, "sh", "-c", STARTED, ssh_config=config) as run:
        expect_refused(bed, run, "h02", "resolve")


def scenario_every_failure_in_one_run(bed):
    config = ssh_config_variant(bed, bed.shared, h01={"HostName": "no-such-host.invalid"}, h02={"Port": "2"},
                                h03={"IdentityFile": bed.bed.host_dir(1) / "host_key"})
    with Run(bed, "sh", "-c", STARTED, ssh_config=config) as run:
        equal(run.wait(40), UNREACHABLE, "exit code")
        for pattern in (r"^h01: resolve", r"^h02: connect", r"^h03: auth"):
            run.expect(pattern)
        run.expect_not(r"^h04:")
        bed.expect_nothing_left(10)


def scenario_through_a_jump_host(bed):
    """An included file and ProxyJump: h03 and h04 are reached through h01."""
    inner = ssh_config_variant(bed, bed.shared, h03={"ProxyJump": "h01"}, h04={"ProxyJump": "h01"})
    outer = bed.shared / "outer"
    outer.write_text(f"Include {inner}\n")
    with Run(bed, "sh", "-c", "echo $RANK $(hostname) ${SSH_CONNECTION%% *}", ssh_config=outer, slots=1) as run:
        equal(run.wait(40), 0, "exit code")
        equal(run.log(0).split()[1], b"h01", "host of rank 0")
        equal(run.log(3).split()[1], b"h04", "host of rank 3")


def scenario_chain_of_two_jumps(bed):
    """h04 through h03, which is reached through h02."""
    config = ssh_config_variant(bed, bed.shared, h04={"ProxyJump": "h02,h03"})
    old = {host: ssh_connections(bed, host) for host in ("h02", "h03", "h04")}
    with Gates(bed) as gates, Run(bed, "sh", "-c", gates.wait("on"), ssh_config=config, hosts="h[01,04]", slots=1) as run:
        run.wait_for_ranks(2)
        for host, peer in (("h02", None), ("h03", "h02"), ("h04", "h03")):
            peers = ssh_peers(bed, host, old[host])
            if peer:
                equal(peers, [bed.address(peer)], f"who is connected to the sshd of {host}")
            equal(len(peers), 1, f"connections to the sshd of {host}")
        gates.open("on")
        equal(run.wait(40), 0, "exit code")


def ssh_connections(bed, host):
    """Returns the peers of established connections to the host's sshd (port 22), in the kernel's notation."""
    found = set()
    for line in bed.run_in(host, "cat", "/proc/net/tcp").splitlines()[1:]:
        _, local, peer, state = line.split()[:4]
        if local.endswith(":0016") and state == "01":
            found.add(peer)
    return found


def ssh_peers(bed, host, old=()):
    """Returns the addresses of peers of connections to the host's sshd, without the connections in `old`: after an outage in an
    earlier scenario a host may take a minute to notice that a connection has ended."""
    return sorted(socket.inet_ntoa(bytes.fromhex(peer.split(":")[0])[::-1]) for peer in ssh_connections(bed, host) - set(old))


def many_names(bed, names, jump=None):
    """Writes an ssh_config in which `names` are h02, h03, h04, h02 ..., reached through `jump`, and h01 is itself."""
    blocks = {match.group(1): block for block in bed.ssh_config.read_text().split("\n\n")
              if (match := re.match(r"Host (\S+)", block))}
    text = [blocks["h01"]]
    for number, name in enumerate(names):
        block = blocks[HOSTS[1 + number % 3]].replace(HOSTS[1 + number % 3], name, 1)
        text.append(block + (f"\n  ProxyJump {jump}" if jump else ""))
    path = bed.shared / "many_names"
    path.write_text("\n\n".join(text) + "\n")
    return path


def scenario_40_names_behind_a_default_jump_host(bed):
    """One sshd with its default config as jump host, three hosts behind it, 40 names: all are reached."""
    names = [f"t{number:02d}" for number in range(1, 41)]
    with Run(bed, "sh", "-c", "echo here", ssh_config=many_names(bed, names, "h01"), hosts="t[01-40]", slots=1,
             settings={"runner.mpi": "off", "runner.allow_same_machine": "true", "runner.ssh.handshake_timeout": "40s",
                       "runner.ssh.auth_timeout": "40s"}) as run:  # long, because all of them share this machine's processors
        equal(run.wait(90), 0, "exit code")
        equal([run.log(rank) for rank in range(40)], [b"here\n"] * 40, "output")


def scenario_two_names_of_one_machine(bed):
    """Ranks of both names would share CPUs: the run is refused before a rank starts, unless the config allows it. `check` reports it, too."""
    config = many_names(bed, ["t01", "t02", "t03", "t04"])  # t01 and t04 are h02
    job = {"ssh_config": config, "hosts": "t[01-04]", "slots": 1}
    with Run(bed, "sh", "-c", STARTED, **job) as run:
        equal(run.wait(40), 2, "exit code")
        run.expect(r"t01 and t04 are two names of one machine, .*set runner.allow_same_machine = true")
        equal(hosts_that_started(bed), [], "hosts where a rank ran")
        bed.expect_nothing_left(10)
    with Run(bed, "sh", "-c", "echo $(hostname)", **job, settings={"runner.allow_same_machine": "true"}) as run:
        equal(run.wait(40), 0, "exit code where it is allowed")
        equal([run.log(rank) for rank in range(4)], [b"h02\n", b"h03\n", b"h04\n", b"h02\n"], "hosts of the ranks")
    argv = [SORTIE, "check", "--hosts", "t[01-04]", "--ssh-config", config]
    for allowed in (False, True):
        done = run_to_end(*argv, *["--set", "runner.allow_same_machine=true"] * allowed, seconds=30)
        equal("FAIL ssh: t04: another name of the machine of t01" in done.stdout, not allowed, f"found by check ({done.stdout})")


def connected_at(run):
    """Returns {host: seconds from the start of the run to `connected` in the journal}."""
    events = whole_events(run.folder_of_run() / "events.jsonl")
    began = time.time() - run.elapsed()
    return {event["host"]: event["time"] - began for event in events if event["event"] == "connected"}


def dead_names(bed):
    """Takes the link of h04 down and writes an ssh_config in which t01 to t24 are all h04. Returns its path."""
    names = [f"t{number:02d}" for number in range(1, 25)]
    config = many_names(bed, names)
    text = config.read_text()
    for name in names:
        text = re.sub(rf"(Host {name}\n  HostName) \S+", rf"\1 {bed.address('h04')}", text)
    config.write_text(text + "\n\n" + bed.ssh_config.read_text())
    bed.link("h04", "down")
    return config


def scenario_dead_hosts_do_not_delay_an_exec(bed):
    # Fan-out of two: each pair of dead hosts counts for half a second, or for the 3 s until the kernel reports no route.
    with Exec(bed, "echo", "here", hosts="t[01-24],h[01-03]", ssh_config=dead_names(bed),
              options=["--fanout", "2", "--set", "runner.ssh.connect_timeout=60s"]) as run:
        wait_until(lambda: run.out().count("here") == 3, 25, "output of the living hosts")
        run.process.send_signal(signal.SIGINT)
        run.process.send_signal(signal.SIGINT)
        equal(run.wait(30), 130, "exit code")


def scenario_dead_hosts_do_not_delay_living_ones(bed):
    """More dead hosts than the fan-out, first in the list: the living hosts do not wait for their timeout."""
    config = dead_names(bed)
    with Run(bed, "sh", "-c", STARTED, ssh_config=config, hosts="t[01-24],h[01-03]", slots=1,
             settings={"runner.ssh.fanout": 2, "runner.ssh.connect_timeout": "15s"}) as run:
        equal(run.wait(60), UNREACHABLE, "exit code")
        # One line or two: some hosts time out, for others there is no route.
        run.expect(r"^t\[.*\]: connect: ")
        failed = [(one["host"], one["stage"]) for one in whole_events(run.folder_of_run() / "events.jsonl")
                  if one["event"] == "host_failed"]
        equal(sorted(failed), [(f"t{number:02}", "connect") for number in range(1, 25)], "hosts that were not reached")
        times = connected_at(run)
        equal(sorted(times), HOSTS[:3], "hosts that were reached")
        check(max(times.values()) < 14.5, f"the living ones waited for the dead: {times}")


def scenario_link_down_with_default_timing(bed):
    """No output and default timing: the dead host is noticed within 15 s, or a little later on a busy machine."""
    with Run(bed, "sleep", "1000", slots=1) as run:
        run.wait_for_ranks(4)
        bed.link("h03", "down")
        began = now()
        run.wait_for_text(r"h03: lost", 25)
        in_time(began, 25, "the verdict")
        run.wait(60)
        bed.link("h03", "up")
        bed.expect_nothing_left(20)


SYSTEM_SSH = {"runner.ssh.command": '["ssh", "-o", "BatchMode=yes"]'}


def ssh_children(run):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and parent_of(entry) == run.process.pid:
            found.append(int(entry))
    return found


def scenario_system_ssh_runs_a_job(bed):
    """runner.ssh.command: a job runs as over Sortie's own connections. The runner is pushed, and no ssh process is left here."""
    bed.run_in("h02", "rm", "-rf", ".cache/sortie")
    with Gates(bed) as gates, Run(bed, "sh", "-c", f"echo $RANK $MASTER_ADDR; {gates.wait('on')}", settings=SYSTEM_SSH) as run:
        run.wait_for_ranks(8, 40)
        children = ssh_children(run)
        equal(len(children), 4, "ssh programs while the ranks run")
        gates.open("on")
        equal(run.wait(30), 0, "exit code")
        for rank in range(8):
            equal(run.log(rank).decode(), f"{rank} {bed.address('h01')}\n", f"output of rank {rank}")
        wait_until(lambda: not [pid for pid in children if os.path.exists(f"/proc/{pid}")], 10, "ssh programs gone")
    with Run(bed, "sleep", "1000", settings=SYSTEM_SSH) as run:
        _, pid = run.wait_for_ranks(8, 40)[5]
        os.kill(pid, 9)
        equal(run.wait(30), 137, "exit code of a run that fails")
        bed.expect_nothing_left(10)


def scenario_system_ssh_names_the_stage(bed):
    config = ssh_config_variant(bed, bed.shared, h01={"HostName": "no-such-host.invalid"}, h02={"Port": "2"},
                                h03={"IdentityFile": bed.bed.host_dir(1) / "host_key"},
                                h04={"UserKnownHostsFile": "/dev/null"})
    with Run(bed, "sh", "-c", STARTED, ssh_config=config, settings=SYSTEM_SSH) as run:
        equal(run.wait(30), UNREACHABLE, "exit code")
        for pattern in (r"^h01: resolve", r"^h02: connect", r"^h03: auth", r"^h04: host_key"):
            run.expect(pattern)
    equal(hosts_that_started(bed), [], "hosts where a rank ran")
