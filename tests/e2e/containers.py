"""Runs in containers without faults: training equal to a run without containers, MPI, arguments and variables, two jobs on
one host, this machine without SSH, the other engines, an image that is pushed."""

import os
import re
import shutil
import time

from boxes import ALL, AWAKE, IMAGE, RUNNING, ContainerBed, SmallBed, boxed, config_with_table, folder, table
from check import Checked
from harness import HOSTS, PROGRAMS, ROOT, SORTIE, Gates, Run, check, equal, run_to_end, wait_until
from masters import Masters
from training import CONFIG, build_tokens, losses
from warm import Warm

__all__ = ["ContainerBed"]  # run.py uses it
HOSTILE = ["a b", "$(touch /tmp/owned)", "`id`", "'\"", "\\n", "line\nbreak", "*", "", "--hosts", ";|&<>", "$HOME", "\u00e4\u2713"]
RING = "e2e_mpi_ring"


def trained(bed, config, settings, seconds=120):
    # Eight ranks that spin, in the control groups of four containers, can keep everything else from two cores for 30 seconds.
    patient = {"runner.heartbeat_timeout": "90s"}
    with Run(bed, config=config, slots=2, settings={**AWAKE, **patient, **settings}) as run:
        equal(run.wait(seconds), 0, "exit code")
        return losses(run)


def scenario_training_equals_bare_and_resumes(bed):
    """Only the table differs: losses are equal to the bit, and a run resumes from its checkpoint."""
    build_tokens(bed)
    checkpoints = bed.shared / "boxed"
    shutil.rmtree(checkpoints, ignore_errors=True)
    checkpoints.mkdir()
    checkpoints.chmod(0o777)
    data = {"data.data_prefixes": f'["{bed.shared}/tokens"]'}
    inside = {"data.data_prefixes": '["/data/tokens"]', "trainer.save_dir": "/checkpoints"}
    config = config_with_table(bed, CONFIG, mounts=[[str(bed.shared), "/data", "ro"], [str(checkpoints), "/checkpoints"]],
                               shm_size="64MiB")
    bare = trained(bed, CONFIG, settings=data)
    equal(sorted(bare), list(range(1, 21)), "steps of the bare run")
    # The first run stops at step 12. The schedule does not depend on the number of steps.
    first = trained(bed, config, settings={**inside, "trainer.train_iterations": 12, "trainer.save_interval": 6})
    second = trained(bed, config, settings={**inside, "trainer.train_iterations": 20, "trainer.save_interval": 10})
    equal(sorted(first), list(range(1, 13)), "steps of the first run in containers")
    equal(sorted(second), list(range(13, 21)), "steps of the second run in containers")
    equal({**first, **second}, bare, "losses in containers")
    owners = {path.stat().st_uid for path in checkpoints.rglob("*")}
    equal(owners, {bed.shared.stat().st_uid}, "owners of what was written")


def scenario_mpi_in_one_container_per_host(bed):
    with boxed(bed, RING) as run:
        equal(run.wait(60), 0, "exit code")
        run.expect(r"ring ok size=8 sum=28")


def scenario_mpi_in_one_container_per_rank(bed):
    """Ranks of a host communicate through shared memory. In the second run Open MPI may use nothing else."""
    with boxed(bed, RING, box={"scope": "rank", "shm_size": "64MiB"},
               settings={"runner.env.OMPI_MCA_btl": "self,vader,tcp"}) as run:
        equal(run.wait(60), 0, "exit code")
        run.expect(r"ring ok size=8 sum=28")
    with boxed(bed, RING, hosts="h01", box={"scope": "rank"}, settings={"runner.env.OMPI_MCA_btl": "self,vader"}) as run:
        equal(run.wait(60), 0, "exit code of ranks that have shared memory alone")
        run.expect(r"ring ok size=2 sum=1")


def scenario_two_jobs_on_one_host(bed):
    """Their files in /dev/shm have the same names and do not collide."""
    # Unbound, because both would get the same cores. On one host, because ranks of several control groups that busy-wait on two
    # cores have been seen to block every other process of the machine, for up to 98 s with eight ranks in four groups.
    options = {"hosts": "h01", "settings": {"runner.env.OMPI_MCA_btl": "self,vader,tcp", "runner.cpu_binding": "none"}}
    with boxed(bed, "sh", "-c", "e2e_mpi_ring && sleep 2 && ls /dev/shm | wc -l", **options) as one, \
            boxed(bed, "sh", "-c", "e2e_mpi_ring && sleep 2", **options) as other:
        equal(one.wait(60), 0, "exit code of one")
        equal(other.wait(60), 0, "exit code of the other")
        for run in (one, other):
            run.expect(r"ring ok size=2 sum=1")


def scenario_arguments_and_variables_byte_for_byte(bed):
    """Arguments and variables pass through no shell and no engine's argv and arrive unchanged. Secrets are in no process list."""
    script = r"""
printf '%s\0' "$@" | od -An -v -tx1 | tr -d ' \n'; echo
printf '%s' "$HOSTILE" | od -An -v -tx1 | tr -d ' \n'; echo
echo "$TOKEN_IS_SECRET" | wc -c; echo "[$SSH_CONNECTION$SORTIE_E2E]"; id -u; pwd; echo "$HOME"; hostname; touch /data/there
"""
    value = "'\"$HOME `id` $(id)\nsecond line\\ \u00e4\u2713"
    box = {"mounts": [[str(bed.shared), "/data"]], "workdir": "/tmp"}
    os.environ["TOKEN_IS_SECRET"] = "hidden-0815"
    with Gates(bed) as gates, \
            boxed(bed, "sh", "-c", f"{script}until test -e /data/{gates.folder.name}/seen; do sleep 0.05; done", "sh", *HOSTILE,
                  slots=1, hosts="h01,h02", box=box,
                  settings={"runner.container.env.HOSTILE": value, "runner.secret_env.TOKEN_IS_SECRET": "(secret)"}) as run:
        run.wait_for_ranks(2)
        for host in HOSTS[:2]:
            shown = bed.docker(host, "inspect", *bed.containers(host, *RUNNING))
            check("hidden-0815" not in shown and "second line" not in shown, f"{host}: a variable is in docker inspect")
            commands = "\n".join(command for *_, command in bed.processes(host))
            check("hidden-0815" not in commands, f"{host}: the secret is in a process list")
        gates.open("seen")
        equal(run.wait(40), 0, "exit code")
        for rank in range(2):
            lines = run.log(rank).decode().splitlines()
            equal(bytes.fromhex(lines[0]), b"".join(word.encode() + b"\0" for word in HOSTILE), f"arguments of rank {rank}")
            equal(bytes.fromhex(lines[1]), value.encode(), f"variable of rank {rank}")
            owner = str(bed.shared.stat().st_uid)
            equal(lines[2:], ["12", "[]", owner, "/tmp", "/home/sortie", f"h0{rank + 1}"], f"surroundings of rank {rank}")
        equal((bed.shared / "there").stat().st_uid, bed.shared.stat().st_uid, "owner of what a rank writes")


def scenario_output_byte_for_byte(bed):
    import sys
    sys.path.insert(0, str(PROGRAMS))
    import any_bytes
    path = bed.shared / "bytes"
    path.write_bytes(any_bytes.BYTES)
    with boxed(bed, "sh", "-c", "cat /data/bytes; echo late >&2; exit 0", hosts="h01", slots=2,
               box={"mounts": [[str(bed.shared), "/data", "ro"]]}) as run:
        equal(run.wait(60), 0, "exit code")
        for rank in range(2):
            check(run.log(rank) == any_bytes.BYTES, f"output of rank {rank} is not what it wrote")
            equal(run.log(rank, "err"), b"late\n", f"stderr of rank {rank}")


def scenario_limits_reach_the_container(bed):
    script = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; df -k /dev/shm | tail -n 1"
    with boxed(bed, "sh", "-c", script, hosts="h01", slots=2,
               box={"memory": "64MiB", "cpus": 0.5, "shm_size": "48MiB"}) as run:
        equal(run.wait(40), 0, "exit code")
        limit, shm = run.log(0).decode().splitlines()
        equal(limit, str(2 * 64 << 20), "memory of a container with two ranks")
        equal(shm.split()[1], str(48 << 10), "KiB of /dev/shm")


def scenario_staged_files_for_another_user(bed):
    """The user of the ranks is not the one that signs in, and reads what was staged."""
    with folder() as where:
        where.chmod(0o755)
        (where / "words").write_text("staged words\n")
        with boxed(bed, "cat", "{stage}/words", hosts="h01", slots=1, box={"user": "12345:12345"},
                   settings={"runner.stage": f'["{where}/words"]', "runner.mpi": "off"}) as run:
            equal(run.wait(40), 0, "exit code")
            equal(run.log(0), b"staged words\n", "output of the rank")
    mode = bed.run_in("h01", "sh", "-c", "stat -c %a ~/.cache/sortie/stage").strip()
    equal(mode, "700", "mode of the folder that keeps other users of the host out")


def push_image(bed, ssh_config, *settings, environment=None):
    """Removes the image from the engines of the other hosts, then pushes it to them from the engine of h01."""
    for host in HOSTS[1:]:
        bed.docker(host, "rmi", "--force", IMAGE)
    with folder() as where:
        argv = [SORTIE, "image", "push", IMAGE, "--hosts", "h[02-04]", "--ssh-config", ssh_config]
        for setting in (f"logger.log_dir={where}", *settings):
            argv += ["--set", setting]
        pushed = run_to_end(*argv, env={**(environment or os.environ), "DOCKER_HOST": bed.docker_host("h01"),
                                        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"})
        equal(pushed.returncode, 0, f"exit code of image push ({pushed.stdout}{pushed.stderr})")
    ids = {bed.docker(host, "images", "--no-trunc", "--quiet", IMAGE).strip() for host in HOSTS}
    equal(len(ids), 1, f"ids of the image ({ids})")


def scenario_image_goes_through_masters_and_kept_connections(bed):
    """No sign-in at any host: the user has no key, or the connections are kept ones."""
    with Masters(bed, *HOSTS[1:]) as masters:
        masters.start()
        push_image(bed, masters.without_key)
    with Warm(bed) as warm:
        warm.exec("true", hosts="h[02-04]")
        warm.wait_idle(HOSTS[1:])
        before = warm.signs_in()
        push_image(bed, bed.ssh_config, "runner.ssh.persist=60s", environment=warm.environment)
        warm.wait_idle(HOSTS[1:])
        equal(warm.signs_in(), before, "sshd processes after the push")
        run_to_end(SORTIE, "connections", "close", seconds=10, env=warm.environment)
        bed.expect_nothing_left(5)


def scenario_image_appears_on_all_hosts(bed):
    """`docker save` from one host's engine: only what the others lack is sent. A run then finds the image on every host."""
    push_image(bed, bed.ssh_config)
    with boxed(bed, "true", box={"pull": "never"}) as run:
        equal(run.wait(40), 0, "exit code")


def run_here(box):
    argv = [SORTIE, "run", "--slots", "2", "--set", "logger.log_dir=/tmp/state"]
    for key, value in table(**box).items():
        argv += ["--set", f"{key}={value}"]
    return list(map(str, argv))


def scenario_this_machine_without_ssh(bed):
    """Without hosts in the config, ranks start in this machine's docker. Here sortie itself runs on h01."""
    output = bed.run_in("h01", *run_here({}), "--", RING)
    check(re.search(r"ring ok size=2 sum=1", output), output)


def scenario_podman_without_root(bed):
    with SmallBed("podman", 2) as small:
        archive = small.archive()
        for host in ("h01", "h02"):
            small.command("exec", host, "podman", "load", "--quiet", "--input", archive)
        with boxed(small, RING, hosts="h01,h02", box={"engine": "podman", "image": f"localhost/{IMAGE}"}) as run:
            equal(run.wait(60), 0, "exit code")
            run.expect(r"ring ok size=4 sum=6")
        for host in ("h01", "h02"):
            wait_until(lambda host=host: not small.command("exec", host, "podman", *ALL).strip(), 15, f"{host}: no container left")


def scenario_containerd(bed):
    """ctr mounts images itself, which needs root: again a machine without SSH. It starts the image's own user, who can not
    become another one: that is refused at once, and `check` fails for a user who is not root."""
    with SmallBed("containerd", 1) as small:
        small.command("exec", "--root", "h01", "ctr", "image", "import", small.archive())
        name = small.command("exec", "--root", "h01", "ctr", "image", "ls", "--quiet").split()[0]
        output = small.command("exec", "--root", "h01", "env", "HOME=/tmp",
                               *run_here({"engine": "containerd", "image": name, "user": "1000:1000"}),
                               "--set", "runner.mpi=off", "--", "sh", "-c", "echo rank $RANK is $(id -u) in $(ls -d /home/sortie)")
        for rank in range(2):
            check(f"rank {rank} is 1000 in /home/sortie" in output, output)
        wait_until(lambda: not small.command("exec", "--root", "h01", "ctr", "container", "ls", "--quiet").strip(), 15, "no container left")
        with Run(small, "id", hosts="h01", settings=table(engine="containerd", image=name)) as run:
            equal(run.wait(20), 3, "exit code of another user than root")
            run.expect(r"h01: unsupported: .*ctr: only root can start containers")
        checked = Checked(small, *(word for key, value in table(engine="containerd", image=name).items()
                                   for word in ("--set", f"{key}={value}")), "--set", 'runner.program=["true"]', hosts="h01")
        checked.expect("h01", "engine", "fail", "only root can start containers")
        begin = time.monotonic()
        refused = run_to_end(ROOT / "scripts/testbed", "exec", "--root", "h01", "env", "HOME=/tmp",
                             *run_here({"engine": "containerd", "image": name}), "--", "id", env=small.environment)
        check(re.search("ctr starts it as its own user, 1000:1000, who can not become 0:0", refused.stderr), refused.stderr)
        check(time.monotonic() - begin < 10, "the refusal takes long")
