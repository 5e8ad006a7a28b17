#!/usr/bin/python3
"""run.py up | up-containers | down | down-containers | FILE.NAME : the suite's bed, or one scenario on it. ctest calls it; by hand:

    tests/e2e/run.py up; tests/e2e/run.py endings.rank_killed; tests/e2e/run.py down
"""

import importlib
import os
import signal
import subprocess
import sys
import time
import traceback

import matrix
from boxes import SMALL_BEDS, ContainerBed, build_image
from harness import BED_ID, HOSTS, ROOT, HostBed, own_store, testbed
from machine_clock import CLOCK

TRIES = 2
STANDSTILL = 3.0  # seconds; scenarios lose hosts after 3 s without heartbeats


def bed_command(*arguments, bed_id=BED_ID):
    return subprocess.run([ROOT / "scripts/testbed", *arguments],
                          env={**os.environ, "SORTIE_TESTBED_ID": bed_id}).returncode


def up_with_containers():
    """Brings up a bed with a dockerd per host, and the image in each of them. Fails on a machine that can not run them."""
    if code := bed_command("up", str(len(HOSTS)), "--docker"):
        print("e2e: no containers on this machine (see above): the scenarios with label containers can not run;"
              " install what they need with: scripts/setup --test", file=sys.stderr)
        return code
    build_image()
    ContainerBed().load_all()
    return 0


def main():
    if os.geteuid() != 0:
        print("e2e: needs root: the testbed makes network namespaces; run ctest as root", file=sys.stderr)
        return 1
    # A background job of a shell ignores SIGINT, and all programs started here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    what = sys.argv[1]
    if what == "up":  # two hosts with their own cgroup, two without: ending ranks must work either way
        return bed_command("up", str(len(HOSTS)), "--cgroup", "2")
    if what == "up-containers":
        return up_with_containers()
    if what == "down-containers":
        return max(bed_command("down", bed_id=kind + BED_ID[1:]) for kind in (BED_ID[0], *SMALL_BEDS.values()))
    if what == "down":  # both beds, because a matrix that timed out leaves its own
        return max(bed_command("down"), bed_command("down", bed_id=matrix.BED))
    file, name = what.split(".")
    module = importlib.import_module(file)
    scenario = getattr(module, f"scenario_{name}")
    try:
        bed = getattr(module, "ContainerBed", HostBed)()
    except testbed.TestbedError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1
    CLOCK.longest_gap()
    for attempt in range(TRIES):
        if play(what, scenario, bed):
            return 0
        still = CLOCK.longest_gap()
        if attempt + 1 == TRIES or still < STANDSTILL:
            return 1
        print(f"e2e: for {still:.1f} s nothing ran on this machine, so nothing is known of Sortie; once more", flush=True)


def play(what, scenario, bed):
    started = time.monotonic()
    try:
        bed.clear()
        try:
            with own_store():
                scenario(bed)
            bed.expect_nothing_left(15)
        finally:
            bed.clear()
    except Exception:
        traceback.print_exc()
        return False
    print(f"ok: {what} in {time.monotonic() - started:.1f} s", flush=True)
    return True


sys.exit(main())
