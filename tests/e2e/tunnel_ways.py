"""Tunnels over bad links, without rights, and after each kind of kill. Registered for `ctest -C long`."""

import os
import re
import signal

import ranks
from check import Checked, shaped
from harness import ROOT, Run, check, equal, run_to_end, wait_until
from training import CONFIG, losses, settings, train
from tunnel import PORT, THREE, as_root, behind_a_translator, devices, expect_no_trace, raised, rules, tunnel_run

DDP_RESULT = re.compile(r"ddp size=(?P<size>\d+) loss=(?P<loss>[0-9.e-]+) weights=(?P<weights>[0-9a-f]+)")


def deaf(one, other, bed):
    """Rules that drop all UDP between two hosts."""
    return [(one, f"+ INPUT -p udp -s {bed.address(other)} -j DROP"), (other, f"+ INPUT -p udp -s {bed.address(one)} -j DROP")]


def scenario_narrow_links_and_taken_ports(bed):
    """A link with a lowered MTU is found and named. A port that another program uses is skipped."""
    taken = "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 51820)); time.sleep(600)"
    with as_root(bed) as config:
        bed.run_in("h02", "ip", "link", "set", "eth0", "mtu", "1400", as_root=True)
        bed.run_in("h01", "sh", "-c", f'setsid python3 -c "{taken}" > /dev/null 2>&1 & echo $! > /tmp/taken', as_root=True)
        try:
            with tunnel_run(bed, config, "true") as run:
                equal(run.wait(90), 0, "exit code")
                equal(raised(run)["mtu"], 1340, "MTU")
                run.expect(r"MTU 1340, .*the way between h0\d and h0\d carries no more than 1400 bytes")
        finally:
            bed.run_in("h02", "ip", "link", "set", "eth0", "mtu", "1500", as_root=True)
            bed.run_in("h01", "sh", "-c", "kill $(cat /tmp/taken); rm /tmp/taken", as_root=True)
        expect_no_trace(bed, 5)


def scenario_pairs_that_hear_nothing(bed):
    """A third host relays for the pair if there is one. Otherwise the message names the pair, and no rank starts."""
    with as_root(bed) as config, rules(bed, *deaf("h01", "h03", bed)):
        with tunnel_run(bed, config, ranks.RING) as run:
            equal(run.wait(90), 0, "exit code")
            run.expect(r"ring ok size=3 sum=3")
            run.expect(r"h01 - h03 relayed by h02")
        with tunnel_run(bed, config, "true", hosts="h01,h03") as run:
            equal(run.wait(90), 4, "exit code")
            equal(ranks.events(run, "started"), [], "orders to start")
            run.expect(r"h01 - h03: no answer from \S*:51820")
            run.expect(r"let UDP port 51820 in on one host of each pair \(`ufw allow 51820/udp`")
        expect_no_trace(bed, 5)


def scenario_check_makes_one_and_takes_it_away(bed):
    """Also measures it. A pair without UDP between its hosts is named."""
    words = ["--set", "runner.network.tunnel=wireguard"]
    with as_root(bed) as config:
        result = Checked(bed, *words, "--bandwidth", "0.3", hosts="h[01-03]", ssh_config=config, seconds=90)
        for host in THREE:
            result.expect(host, "tunnel", "pass", "MTU 1420, by wireguard-go; up in")
            for other in set(THREE) - {host}:
                check(re.search(rf"to {other} [0-9.]+ Mbit/s", result.finding(host, "tunnel")["reason"]), f"no rate from {host} to {other}")
        expect_no_trace(bed, 5)
        with rules(bed, *deaf("h01", "h03", bed)):
            result = Checked(bed, *words, hosts="h01,h03", ssh_config=config, seconds=90)
            result.expect("h01", "tunnel", "fail", "h01 - h03: no answer from")
            equal(result.code, 2, "exit code")
        expect_no_trace(bed, 5)


def scenario_nothing_of_it_is_left(bed):
    """Whichever process is killed, and however the run ends."""
    with as_root(bed) as config:
        for victim, number in (("runner", signal.SIGKILL), ("launcher", signal.SIGKILL), ("launcher", signal.SIGINT),
                               ("holder", signal.SIGKILL), ("wireguard-go", signal.SIGKILL), ("link", None)):
            with tunnel_run(bed, config, "sleep", "600", settings={"runner.heartbeat_interval": "500ms", "runner.heartbeat_timeout": "3s"}) as run:
                run.wait_for_ranks(3, 60)
                check(all(len(devices(bed, host)) == 1 for host in THREE), "not every host has its device")
                if victim == "link":
                    bed.link("h02", "down")
                else:
                    os.kill(victim_on(bed, run, victim), number)
                code = run.wait(60)
                check(code != 0, f"exit code 0 after {victim} was ended")
                bed.link("h02", "up")
                if victim in ("holder", "wireguard-go"):
                    run.expect(r"h02: the tunnel is gone")
                expect_no_trace(bed, 15)


def scenario_another_attempt_has_another_tunnel(bed):
    """All attempts use the same port, also after the kill of a runner."""
    settings = {"recovery.max_restarts": 2, "recovery.backoff": "0s", "recovery.cordon": "false"}
    first_fails = "test $SORTIE_ATTEMPT != 1 || exit 3; test $SORTIE_ATTEMPT != 2 || sleep 600; ss -uln"
    with as_root(bed) as config:
        with tunnel_run(bed, config, "sh", "-c", first_fails, settings=settings) as run:
            wait_until(lambda: run.folder_of_run() and (run.folder_of_run() / "events.jsonl").exists()
                       and len(ranks.events(run, "rank_started")) == 6, 60, "the ranks of the second attempt")
            os.kill(bed.runner("h02"), signal.SIGKILL)
            equal(run.wait(90), 0, "exit code")
            tunnels = ranks.events(run, "tunnel")
            equal(len({event["devices"]["h02"].split()[0] for event in tunnels}), 3, "names of devices")
            logs = [path.read_text() for path in (run.folder_of_run() / "attempts/3/logs").glob("*.out")]
            check(len(logs) == 3 and all(f":{PORT} " in text for text in logs), f"a tunnel of the third attempt is on another port: {logs}")
        expect_no_trace(bed, 5)


def scenario_pytorch_over_two_sites(bed):
    """An unchanged program of torch.distributed: two hosts here, two behind NAT, 50 Mbit/s between all of them. Its ranks find
    each other in the tunnel, and train as one process does. Needs Debian's python3-torch."""
    check(run_to_end("/usr/bin/python3", "-c", "import torch.distributed").returncode == 0,
          "no PyTorch on this machine: scripts/setup --long")
    four = [*THREE, "h04"]
    program = str(ROOT / "tests/e2e/programs/torch_ddp.py")
    with Run(bed, program, hosts="h01", slots=1) as run:
        equal(run.wait(60), 0, "exit code of one rank")
        alone = DDP_RESULT.search(run.text())
    program = f"{program} && grep $GLOO_SOCKET_IFNAME /proc/net/dev >&2"
    translated = behind_a_translator("h03") + behind_a_translator("h04")
    with as_root(bed) as config, rules(bed, *translated), shaped(bed, dict.fromkeys(four, "50mbit")):
        with tunnel_run(bed, config, "sh", "-c", program, hosts="h[01-04]") as run:
            equal(run.wait(120), 0, "exit code")
            found = [DDP_RESULT.search(run.log(rank).decode()) for rank in range(4)]
            check(all(found), f"a rank without a result: {run.text()}")
            equal({one["size"] for one in found}, {"4"}, "size of the world")
            equal(len({one["weights"] for one in found}), 1, "weights at the end, of different bits")
            close = abs(float(found[0]["loss"]) / float(alone["loss"]) - 1)
            check(close < 1e-3, f"loss {found[0]['loss']}, of one process {alone['loss']}")
            sent = [int(run.log(rank, "err").decode().split(":")[-1].split()[8]) for rank in range(4)]
            check(min(sent) > 1_000_000, f"bytes of the ranks through the tunnel: {sent}")
        expect_no_trace(bed, 5)


def scenario_demo_over_two_sites(bed):
    """Decoupled momentum between two sites: one world on links of 50 Mbit/s, one of the hosts behind NAT. The losses equal those without
    a tunnel to the bit."""
    job = settings(bed, optimizer__name="demo", trainer__train_iterations=30)
    plain = train(bed, hosts="h[01-02]", slots=1, settings=job)
    with as_root(bed) as config, rules(bed, *behind_a_translator("h02")), shaped(bed, dict.fromkeys(("h01", "h02"), "50mbit")):
        with Run(bed, config=CONFIG, hosts="h[01-02]", slots=1, ssh_config=config, settings={"runner.network.tunnel": "wireguard", **job}) as run:
            equal(run.wait(120), 0, "exit code")
            raised(run)
            equal(losses(run), plain, "losses")
        expect_no_trace(bed, 5)


def victim_on(bed, run, victim, host="h02"):
    if victim == "launcher":
        return run.process.pid
    if victim == "runner":
        return bed.runner(host)
    word = "tunnel sortie-" if victim == "holder" else "wireguard-go"
    return wait_until(lambda: next((pid for pid, _, _, _, command in bed.processes(host) if word in command), None), 5, victim)


def scenario_hosts_that_can_have_none(bed):
    """Without root the error is clear, and no rank starts."""
    with Run(bed, "true", hosts="h[01-02]", slots=1, settings={"runner.network.tunnel": "wireguard"}) as run:
        equal(run.wait(60), 3, "exit code")
        run.expect(r"h\[01-02\].*a tunnel needs root or CAP_NET_ADMIN on this host, or sudo without a password")
        equal(ranks.events(run, "started"), [], "orders to start")
    expect_no_trace(bed, 5)
