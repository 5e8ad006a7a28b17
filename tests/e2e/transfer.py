"""Files to and from hosts: forwarded from host to host, with hosts that fail, and staged for a job."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

from harness import HOSTS, PATIENCE, SORTIE, TRAINER, Failure, Run, check, equal, in_time, run_to_end, wait_until
from machine_clock import communicate, now
from training import CONFIG, build_tokens, losses

MIB = 1 << 20


@contextmanager
def private_folder():
    """A folder that no host sees, because each host has its own /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="sortie-copy-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(bed, verb, *arguments, hosts="h[01-04]"):
    return subprocess.Popen([str(word) for word in (SORTIE, verb, "--ssh-config", bed.ssh_config, "--hosts", hosts,
                                                    "--json", *arguments)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)


def finish(process, code=0, seconds=60):
    """Waits for the exit of sortie. Returns ({host: its result}, stderr)."""
    try:
        out, err = communicate(process, seconds * PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failure(f"{process.args[1]} still runs after {seconds} s") from None
    check(process.returncode == code, f"exit code {process.returncode}, not {code}:\n{out}\n{err}")
    return {host["host"]: host for host in json.loads(out)["hosts"]}, err


def copy(bed, verb, *arguments, code=0, **more):
    return finish(start(bed, verb, *arguments, **more), code)[0]


def hash_on(bed, host, path):
    return bed.run_in(host, "sha256sum", path).split()[0]


def hash_here(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def clean(bed):
    for host in HOSTS:
        bed.run_in(host, "sh", "-c", "chmod -R u+w pushed .cache/sortie/stage 2>/dev/null;"
                                     " rm -rf pushed .cache/sortie/stage")


@contextmanager
def cut_off(bed, host):
    """The host reaches this machine, but its packets to the other hosts are dropped."""
    others = [bed.address(other) for other in HOSTS if other != host]
    for address in others:
        bed.run_in(host, "ip", "route", "add", "blackhole", address, as_root=True)
    try:
        yield
    finally:
        for address in others:
            bed.run_in(host, "ip", "route", "del", "blackhole", address, as_root=True)


@contextmanager
def slow_links(bed, rate):
    import look
    for host in HOSTS:
        look.shape(bed.bed, host, rate)
    try:
        yield
    finally:
        for host in HOSTS:
            look.shape(bed.bed, host, "off")


def full_speed(bed):
    """Ends the rate limits, once a slow push has reached the state that is tested."""
    import look
    for host in HOSTS:
        look.shape(bed.bed, host, "off")


def wait_for_part(bed, host, mib):
    """Waits until more than `mib` MiB of the file have arrived."""
    def arrived():
        parts = bed.run_in(host, "sh", "-c", "du -k pushed/.sortie-part-* 2>/dev/null || true").split()
        return parts and int(parts[0]) > mib * 1024
    wait_until(arrived, 30, f"{mib} MiB on {host}")


def scenario_pieces_are_passed_on(bed):
    clean(bed)
    with private_folder() as folder:
        tree = folder / "tree"
        (tree / "sub").mkdir(parents=True)
        (tree / "sub/large").write_bytes(os.urandom(20 * MIB + 11))
        (tree / "script").write_text("#!/bin/sh\n")
        (tree / "script").chmod(0o750)
        (tree / "link").symlink_to("sub/large")
        results, notes = finish(start(bed, "push", tree, "pushed/"))
        # A host that is too busy to answer the next one for seconds is skipped, with a note.
        passed_over = min(2, notes.count("no more pieces from another host"))
        check(sum(host["bytes_from_hosts"] for host in results.values()) >= (3 - passed_over) * 20 * MIB,
              f"not passed on: {results} {notes}")
        for host in HOSTS:
            equal(hash_on(bed, host, "pushed/tree/sub/large"), hash_here(tree / "sub/large"), f"hash on {host}")
            equal(bed.run_in(host, "stat", "-c", "%a %F", "pushed/tree/script", "pushed/tree/link").split("\n")[:2],
                  ["750 regular file", "777 symbolic link"], f"modes on {host}")
        (tree / "script").write_text("#!/bin/sh\ntrue\n")
        results = copy(bed, "push", tree, "pushed/")
        for host, result in results.items():
            equal((result["files_changed"], result["bytes_from_launcher"] + result["bytes_from_hosts"]), (1, 15),
                  f"files and bytes of the second push to {host}")
    bed.expect_nothing_left(10)


def scenario_a_host_that_the_others_do_not_reach(bed):
    clean(bed)
    with private_folder() as folder, cut_off(bed, "h03"):
        large = folder / "large"
        large.write_bytes(os.urandom(12 * MIB))
        results, notes = finish(start(bed, "push", large, "pushed/large"))
        for host in HOSTS:
            equal(hash_on(bed, host, "pushed/large"), hash_here(large), f"hash on {host}")
        # Unless h03 is the first or last of the chain, two hosts fetch from the launcher; never all four.
        direct = [host for host, result in results.items() if result["bytes_from_launcher"] > 0]
        check("h03" in direct or "no more pieces from another host" in notes, f"{results} {notes}")
        check(len(direct) < 4, f"everybody was fed from here: {results}")
    bed.expect_nothing_left(10)


@contextmanager
def slow_push(bed, size):
    """A push of a file to pushed/large on all hosts that takes 20 seconds. Yields (the file, the process). See full_speed."""
    with private_folder() as folder, slow_links(bed, "10mbit"):
        large = folder / "large"
        large.write_bytes(os.urandom(size))
        yield large, start(bed, "push", large, "pushed/large")


def scenario_a_host_dies_while_it_passes_on(bed):
    clean(bed)
    with slow_push(bed, 24 * MIB) as (large, process):
        wait_for_part(bed, "h02", 4)
        os.kill(bed.runner("h02"), signal.SIGKILL)
        full_speed(bed)
        results, notes = finish(process, code=5)
        equal([host for host, result in results.items() if not result["ok"]], ["h02"], "hosts that failed")
        check("h02: lost: " in notes, f"h02's end is not told: {notes}")
        for host in ("h01", "h03", "h04"):
            equal(hash_on(bed, host, "pushed/large"), hash_here(large), f"hash on {host}")
        results = copy(bed, "push", large, "pushed/large")
        equal(hash_on(bed, "h02", "pushed/large"), hash_here(large), "hash on h02 after the second push")
        sent = results["h02"]["bytes_from_launcher"] + results["h02"]["bytes_from_hosts"]
        check(0 < sent <= 21 * MIB, f"{sent} bytes sent to h02 again, which had some already")
        for host in ("h01", "h03", "h04"):
            equal(results[host]["files_changed"], 0, f"files written on {host} the second time")
    bed.expect_nothing_left(10)


def passing_on(bed):
    """Returns the hosts that fetch from one host and give to another, by their connections."""
    names = {bed.address(host): host for host in HOSTS}
    between = {}
    for host in HOSTS:
        lines = bed.run_in(host, "ss", "-Htn", "state", "established").splitlines()
        peers = {line.split()[-1].rsplit(":", 1)[0] for line in lines}
        between[host] = [names[peer] for peer in peers if peer in names and names[peer] != host]
    return [host for host in HOSTS if len(between[host]) == 2]


def scenario_a_link_goes_down_in_the_middle_of_a_chain(bed):
    clean(bed)
    with slow_push(bed, 24 * MIB) as (large, process):
        victim = wait_until(lambda: len(found := passing_on(bed)) == 2 and found, 20, "a chain of four hosts")[0]
        wait_for_part(bed, victim, 4)
        bed.link(victim, "down")
        full_speed(bed)
        try:
            began = now()
            results, notes = finish(process, code=5)
            # A silent host is lost after 10 s, a silent neighbour is skipped after 5 s; the rest is the transfer.
            in_time(began, 40, "the push")
        finally:
            bed.link(victim, "up")
        equal([host for host, result in results.items() if not result["ok"]], [victim], "hosts that failed")
        check(f"{victim}: lost: " in notes, f"the end of {victim} is not told: {notes}")
        check("no more pieces from another host" in notes, f"nobody noticed that {victim} was silent: {notes}")
        for host in HOSTS:
            if host != victim:
                equal(hash_on(bed, host, "pushed/large"), hash_here(large), f"hash on {host}")
        bed.expect_nothing_left(40)
        copy(bed, "push", large, "pushed/large")
        equal(hash_on(bed, victim, "pushed/large"), hash_here(large), f"hash on {victim} after the second push")
    bed.expect_nothing_left(10)


def scenario_an_interrupted_push_goes_on(bed):
    clean(bed)
    with slow_push(bed, 20 * MIB) as (large, process):
        wait_for_part(bed, "h01", 4)
        process.send_signal(signal.SIGINT)
        full_speed(bed)
        finish(process, code=130, seconds=30)
        bed.expect_nothing_left(15)
        for host in HOSTS:
            check("large" not in bed.run_in(host, "sh", "-c", "ls pushed 2>/dev/null || true"), "half a file is there")
        results = copy(bed, "push", large, "pushed/large")
        for host in HOSTS:
            equal(hash_on(bed, host, "pushed/large"), hash_here(large), f"hash on {host}")
        check(any(result["bytes_from_launcher"] + result["bytes_from_hosts"] < 20 * MIB for result in results.values()),
              f"all was sent again: {results}")


def scenario_pull_from_all_hosts(bed):
    clean(bed)
    for host in HOSTS:
        bed.run_in(host, "sh", "-c", f"mkdir -p pushed/out/sub; echo {host} > pushed/out/name;"
                                     " head -c 3000000 /dev/urandom > pushed/out/sub/data; chmod 640 pushed/out/name;"
                                     " ln -sfn /etc pushed/out/etc; ln -sfn ../name pushed/out/sub/name")
    with private_folder() as folder:
        copy(bed, "pull", "pushed/out", "pushed/out/name", folder / "in")
        for host in HOSTS:
            into = folder / "in" / host
            equal((into / "out/name").read_text(), f"{host}\n", "what came")
            equal((into / "name").read_text(), f"{host}\n", "what came by its own name")
            equal((into / "out/name").stat().st_mode & 0o777, 0o640, "mode")
            equal(hash_here(into / "out/sub/data"), hash_on(bed, host, "pushed/out/sub/data"), f"hash of {host}'s data")
            equal(os.readlink(into / "out/sub/name"), "../name", "the symlink within the copy")
            check(not os.path.lexists(into / "out/etc"), "a symlink that leads out of the copy was made")
        results = copy(bed, "pull", "pushed/out", folder / "in")
        equal(sum(result["bytes_from_hosts"] for result in results.values()), 0, "bytes of the second pull")
        results = copy(bed, "pull", "pushed/nothing", folder / "in", code=9, hosts="h[01-02]")
        check("nothing" in results["h01"]["message"], results["h01"]["message"])
        # One host lacks the path: the copies of the others arrive.
        bed.run_in("h02", "rm", "pushed/out/name")
        results = copy(bed, "pull", "pushed/out/name", folder / "two", code=9)
        equal(sorted(host for host, result in results.items() if result["ok"]), ["h01", "h03", "h04"], "hosts that gave")
        # A path that one host lacks does not prevent the copy of other paths, not even from that host.
        results = copy(bed, "pull", "pushed/out/name", "pushed/o*/sub/d*", folder / "three", code=9)
        check("pushed/out/name" in results["h02"]["missing"][0], str(results["h02"]))
        for host in HOSTS:
            equal(hash_here(folder / "three" / host / "out/sub/data"), hash_on(bed, host, "pushed/out/sub/data"), f"{host}'s match")
        equal((folder / "three/h03/name").read_text(), "h03\n", "the plain path")
    bed.expect_nothing_left(10)


def scenario_staged_training_equals_shared(bed):
    """The trainer and the token files are in a folder that no host sees; each host gets a copy in its home folder."""
    clean(bed)
    tokens = build_tokens(bed)
    common = {"trainer.train_iterations": 8}
    with Run(bed, config=CONFIG, hosts="h[01-02]", slots=1,
             settings={**common, "data.data_prefixes": f'["{tokens}"]'}) as run:
        equal(run.wait(120), 0, "exit code")
        shared = losses(run)
    with private_folder() as folder:
        shutil.copy(TRAINER, folder / "sortie-train")
        for suffix in ("bin", "idx"):
            shutil.copy(f"{tokens}.{suffix}", folder / f"corpus.{suffix}")
        staged = {**common, "data.data_prefixes": '["{stage}/corpus"]',
                  "runner.stage": f'["{folder}/sortie-train", "{folder}/corpus.bin", "{folder}/corpus.idx"]'}
        with Run(bed, config=CONFIG, hosts="h[01-02]", slots=1, settings=staged) as run:
            equal(run.wait(180), 0, "exit code of the staged run")
            run.expect(r"3 files, .* staged on 2 hosts: .* sent from here")
            equal(losses(run), shared, "losses")
        equal(bed.run_in("h02", "sh", "-c", "ls ~/.cache/sortie/stage/*/").split(),
              ["corpus.bin", "corpus.idx", "sortie-train"], "what is kept on h02")
        with Run(bed, config=CONFIG, hosts="h[01-02]", slots=1, settings=staged) as run:
            equal(run.wait(180), 0, "exit code of the second staged run")
            run.expect(r"staged on 2 hosts: all there already")
        bed.expect_nothing_left(10)
        plan = run_to_end(SORTIE, "plan", CONFIG, "--hosts", "h[01-02]",
                      *(word for key, value in staged.items() for word in ("--set", f"{key}={value}")))
        check("corpus.bin -> ~/.cache/sortie/stage/" in plan.stdout, plan.stdout + plan.stderr)
    clean(bed)
