"""A WireGuard mesh between hosts: ranks communicate in it, also on a host behind NAT, and nothing of it is left. tunnel_ways.py has more."""

import contextlib
import re
import time

import ranks
from harness import PATIENCE, Run, check, equal, ssh_config_variant
from machine_clock import now

THREE = ["h01", "h02", "h03"]
PORT = 51820
KEEPALIVES = "wg show $GLOO_SOCKET_IFNAME persistent-keepalive | sort -k 2 | cut -f 2 | tr '\\n' ' '"
SHOW = "echo $MASTER_ADDR $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME $OMPI_MCA_btl_tcp_if_include"


@contextlib.contextmanager
def as_root(bed):
    """Yields an ssh_config that signs in as root, who may create devices. Meanwhile a tmpfs covers /root, which hosts share with this machine."""
    try:
        for host in bed.hosts:
            bed.run_in(host, "mount", "-t", "tmpfs", "tmpfs", "/root", as_root=True)
        yield ssh_config_variant(bed, bed.shared, **{host: {"User": "root"} for host in bed.hosts})
    finally:
        for host in bed.hosts:
            bed.run_in(host, "umount", "-l", "/root", as_root=True)


def tunnel_run(bed, config, *program, hosts="h[01-03]", slots=1, settings=(), **more):
    return Run(bed, *program, hosts=hosts, slots=slots, ssh_config=config,
               settings={"runner.network.tunnel": "wireguard", **dict(settings)}, **more)


@contextlib.contextmanager
def rules(bed, *lines):
    """Appends iptables rules, given as (host, words), and removes them at the end. `+` in the words stands for -A, or -D."""
    done = []
    try:
        for host, words in lines:
            bed.run_in(host, "iptables", *(words.replace("+", "-A", 1)).split(), as_root=True)
            done.append((host, words))
        yield
    finally:
        for host, words in reversed(done):
            bed.run_in(host, "iptables", *(words.replace("+", "-D", 1)).split(), as_root=True)


def behind_a_translator(host):
    """Rules for NAT: packets from the tunnel's port get another source port, and only answers are accepted."""
    return [(host, f"-t nat + POSTROUTING -p udp --sport {PORT} -j MASQUERADE --to-ports 40000-41000"),
            (host, f"+ INPUT -p udp --dport {PORT} -m conntrack --ctstate NEW -j DROP")]


def devices(bed, host):
    text = bed.run_in(host, "ip", "-o", "link", as_root=True)
    return re.findall(r"sortie-[0-9a-f]{8}", text)


def traces(bed):
    """Returns what a tunnel may leave on the hosts: devices, sockets, routes and processes."""
    found = bed.leftovers()
    for host in bed.hosts:
        found += [f"{host}: device {name}" for name in devices(bed, host)]
        files = bed.run_in(host, "sh", "-c", "ls /run/wireguard 2> /dev/null || true", as_root=True).split()
        found += [f"{host}: /run/wireguard/{name}" for name in files]
        found += [f"{host}: route {line}" for line in bed.run_in(host, "ip", "route", as_root=True).splitlines() if "sortie-" in line]
    return found


def expect_no_trace(bed, seconds):
    deadline = now() + seconds * PATIENCE
    while True:
        last = now() >= deadline  # fails only after a check that began past the deadline, because a check takes a while
        if not (left := traces(bed)):
            return
        check(not last, f"still there after {seconds} s:\n  " + "\n  ".join(left))
        time.sleep(0.05)


def raised(run):
    equal(len(ranks.events(run, "tunnel")), 1, "events of a tunnel")
    return ranks.events(run, "tunnel")[0]


def scenario_a_mesh_with_a_host_behind_a_translator(bed):
    """Ranks communicate in the mesh, MPI's bytes pass through the device, its MTU is that of the path, and it is gone at the end."""
    ring = f"{ranks.RING} && grep $GLOO_SOCKET_IFNAME /proc/net/dev >&2 && {KEEPALIVES} && {SHOW}"
    with as_root(bed) as config, rules(bed, *behind_a_translator("h03")):
        with tunnel_run(bed, config, "sh", "-c", ring, settings={"runner.env.OMPI_MCA_btl": "tcp,self"}) as run:
            equal(run.wait(90), 0, "exit code")
            run.expect(r"ring ok size=3 sum=3")
            run.expect(r"tunnel between 3 hosts: .*MTU 1420, by wireguard-go; up in")
            tunnel = raised(run)
            check(tunnel["seconds"] <= 20 * PATIENCE, f"up after {tunnel['seconds']} s")
            equal((tunnel["mtu"], tunnel["relayed"]), (1420, []), "MTU and relayed pairs")
            master = tunnel["devices"]["h01"].split()[1].split("/")[0]
            for rank, host in enumerate(THREE):
                device, address = tunnel["devices"][host].split()
                lines = run.log(rank).decode().splitlines()
                network = tunnel["network"]
                kept = "25 25" if host == "h03" else "25 off"
                equal(lines[-1], f"{kept} {master} ={device} {device} {network}", f"environment of rank {rank} at {address}")
                sent = int(run.log(rank, "err").decode().split(":")[-1].split()[8])
                check(sent > 100_000, f"only {sent} bytes of rank {rank} went through the tunnel")
        expect_no_trace(bed, 10)
