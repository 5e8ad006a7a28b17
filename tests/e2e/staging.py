"""Staged files where the disk of a host is full, and where their source changes."""

import os
from contextlib import contextmanager

from harness import Run, equal, wait_until
from transfer import MIB, clean, full_speed, private_folder, slow_links


@contextmanager
def small_cache(bed, host, mib):
    """The host's stage cache has a disk of its own."""
    user, folder = bed.run_in(host, "sh", "-c", "mkdir -p ~/.cache/sortie/stage; id -u; cd ~/.cache/sortie/stage; pwd").split()
    bed.run_in(host, "mount", "-t", "tmpfs", "-o", f"size={mib}m,uid={user},mode=700", "tmpfs", folder, as_root=True)
    try:
        yield
    finally:
        bed.run_in(host, "umount", folder, as_root=True)


def staged_run(bed, file, hosts="h01"):
    return Run(bed, "true", hosts=hosts, slots=1, settings={"runner.stage": f'["{file}"]'})


def scenario_a_full_disk_is_the_reason(bed):
    clean(bed)
    with private_folder() as folder, small_cache(bed, "h01", 20):
        (folder / "f").write_bytes(os.urandom(30 * MIB))
        for _ in range(10):
            with staged_run(bed, folder / "f") as run:
                equal(run.wait(60), 9, "exit code")
                run.expect(r"h01: io: .*: No space left on device; free space there, or remove what earlier jobs have staged")
                run.expect_not("lost:")
        bed.expect_nothing_left(10)


def scenario_unused_trees_make_room(bed):
    clean(bed)
    with private_folder() as folder, small_cache(bed, "h01", 20):
        for content in (os.urandom(12 * MIB), os.urandom(12 * MIB), b"small\n"):
            (folder / "f").write_bytes(content)
            with staged_run(bed, folder / "f") as run:
                equal(run.wait(60), 0, f"exit code with {len(content)} bytes")
        # Names need little room, but more than a disk has that a program has filled.
        bed.run_in("h01", "sh", "-c", "cat /dev/zero > ~/.cache/sortie/stage/filled 2>/dev/null || true")
        (folder / "f").write_bytes(b"other\n")
        with staged_run(bed, folder / "f") as run:
            equal(run.wait(60), 0, "exit code on a full disk")
        bed.expect_nothing_left(10)


def scenario_a_source_that_changes(bed):
    clean(bed)
    with private_folder() as folder, slow_links(bed, "20mbit"):
        file = folder / "f"
        file.write_bytes(os.urandom(16 * MIB))
        with staged_run(bed, file, hosts="h[01-02]") as run:
            def begun():
                return "part" in bed.run_in("h01", "sh", "-c", "ls -a ~/.cache/sortie/stage/*.part/ 2>/dev/null || true")
            wait_until(begun, 30, "a part on h01")
            with open(file, "r+b") as data:
                data.write(os.urandom(16 * MIB))
            full_speed(bed)
            equal(run.wait(60), 9, "exit code")
            run.expect(r"h\[?01.*: data: f: received data does not match .* was the file changed while it was sent\?")
            run.expect_not("lost:")
    bed.expect_nothing_left(10)
    clean(bed)
