"""Containers across restarts: those of an attempt are removed before the next one starts, and the run ends with the weights of
an undisturbed run. Checkpoints in memory outlive containers."""

import json
import os
import shutil
import signal
import subprocess

from boxes import AWAKE, IMAGE, ContainerBed, SmallBed, config_with_table, engine, folder
from containers import run_here
from harness import HOSTS, ROOT, Run, check, equal, wait_until
from memory import kill_at_once, memory_on
from restart import RESTART, attempts, events, ranks_of, weights
from training import CONFIG, build_tokens, losses

__all__ = ["ContainerBed"]  # run.py uses it
STEPS = 250  # many more than before the last kill, even if this process has to wait for a processor
# Long enough that a busy host is not lost.
CALM = {**RESTART, "runner.heartbeat_interval": "1s", "runner.heartbeat_timeout": "10s"}
PLACES = HOSTS[:2]


def stale_container(bed, host, run_id, attempt):
    """Creates a container as left by an engine that was down at the wrong moment: it belongs to the run, but no process manages it."""
    labels = {"sortie.run": run_id, "sortie.attempt": attempt, "sortie.node": 0, "sortie.uid": bed.shared.stat().st_uid,
              "sortie.folder": f"/tmp/sortie-gone/{run_id}-{attempt}"}
    words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    bed.docker(host, "run", "--detach", "--network", "none", "--log-driver", "none", *words, IMAGE, "sleep", "1000")


def lives_of_containers(bed, host, run_id):
    """Returns {id: (attempt, {"start": nanoseconds, "destroy": ...})} from the engine's own journal."""
    since = "2020-01-01T00:00:00Z"
    text = bed.docker(host, "events", "--since", since, "--until", "0s", "--filter", "type=container", "--filter",
                      f"label=sortie.run={run_id}", "--format", "{{json .}}")
    found = {}
    for line in text.splitlines():
        event = json.loads(line)
        attempt = int(event["Actor"]["Attributes"]["sortie.attempt"])
        found.setdefault(event["id"], (attempt, {}))[1].setdefault(event["status"], event["timeNano"])
    return found


def expect_order(bed, run_id, count):
    """Checks that on every host each attempt started a container, but only after those of the attempt before were removed."""
    for host in PLACES:
        wait_until(lambda: all("destroy" in when for _, when in lives_of_containers(bed, host, run_id).values()), 10,
                   f"{host}: the end of all containers in its engine's journal")
        lives = lives_of_containers(bed, host, run_id).values()
        started = {attempt: min(when["start"] for number, when in lives if number == attempt and "start" in when)
                   for attempt, when in lives if "start" in when}
        equal(sorted(started), list(range(1, count + 1)), f"{host}: attempts with containers")
        for attempt, when in lives:
            if attempt < count:
                check(when["destroy"] < started[attempt + 1],
                      f"{host}: attempt {attempt + 1} started before a container of attempt {attempt} was removed")


def trained(bed, name, settings, disturb):
    """Runs a training. Returns the run's id, its losses, and the hashes of the last checkpoint's weights."""
    folder = bed.shared / f"boxed-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    folder.chmod(0o777)
    build_tokens(bed)
    config = config_with_table(bed, CONFIG, mounts=[[str(bed.shared), "/data", "ro"], [str(folder), "/checkpoints"]],
                               shm_size="64MiB")
    options = {**AWAKE, "data.data_prefixes": '["/data/tokens"]', "trainer.save_dir": "/checkpoints",
               "trainer.train_iterations": STEPS, "trainer.save_interval": 1, "trainer.keep_last": 3,
               "topology.global_batch_size": 4, **settings}
    with Run(bed, config=config, hosts=",".join(PLACES), slots=1, settings=options) as run:
        disturb(run)
        equal(run.wait(120), 0, f"exit code of the run {name} ({run.text()[-2000:]})")
        found = run.id(), losses(run)
        bed.expect_nothing_left(5)
    return *found, weights(folder, options["trainer.train_iterations"])


def scenario_killed_twice_and_restarted(bed):
    """First a runner is killed, which leaves its container without supervision, next to a stale container. Then a rank is killed."""
    def nothing(_run):
        pass

    def twice(run):
        victims = ranks_of(run, 1, 2)
        host = victims[1][0]
        for place in PLACES:  # before the wait for steps: an engine may take longer for this than the ranks for all steps
            stale_container(bed, place, run.id(), 1)
        wait_until(lambda: max(losses(run), default=0) >= 8, 60, "step 8")
        os.kill(bed.runner(host), signal.SIGKILL)
        victims = ranks_of(run, 2, 2)
        reached = max(losses(run))
        stale_container(bed, PLACES[0], run.id(), 2)
        wait_until(lambda: max(losses(run)) >= reached + 5, 60, "steps of attempt 2")
        os.kill(victims[1][1], signal.SIGKILL)
        ranks_of(run, 3, 2)
        equal(attempts(run), [1, 2, 3], "attempts")
        check(events(run, "attempt_end")[1]["begun_at_step"] > 0, "attempt 2 has loaded nothing")

    _, whole_losses, whole = trained(bed, "whole", {}, nothing)
    run_id, seen, restarted = trained(bed, "restarted", CALM, twice)
    expect_order(bed, run_id, 3)
    equal({step: seen.get(step) for step in whole_losses}, whole_losses, "losses")
    equal(restarted, whole, "hashes of the last checkpoint")
    check(engine.listens(bed.bed, PLACES[0], engine.DOCKER_SOCKET), "the engine is gone")


def scenario_killed_and_restarted_in_containerd(bed):
    """ctr: by containerd's own journal, the container of attempt 1 and a stale one are removed before that of attempt 2 is created."""
    with SmallBed("containerd", 1) as small, folder() as where:
        inside = ("exec", "--root", "h01")
        small.command(*inside, "ctr", "image", "import", small.archive())
        image = small.command(*inside, "ctr", "image", "ls", "--quiet").split()[0]
        words = [ROOT / "scripts/testbed", *inside]
        environment = {**os.environ, "SORTIE_TESTBED_ID": small.id}
        with open(where / "journal", "wb") as journal, open(where / "output", "wb") as output:
            watch = subprocess.Popen([*words, "ctr", "events"], env=environment, stdout=journal, stdin=subprocess.DEVNULL)

            def seen(what):
                return (where / "journal").read_text().count(what)

            def listens():
                small.command(*inside, "ctr", "image", "label", image, "sortie.test=watched")
                return seen(" /images/update ")
            wait_until(listens, 30, "somebody who listens to containerd")
            run = subprocess.Popen([*words, "env", "HOME=/tmp", *run_here({"engine": "containerd", "image": image, "user": "1000:1000"}),
                                    "--set", "runner.mpi=off", "--set", "recovery.max_restarts=3", "--set", "recovery.backoff=0s", "--", "sh", "-c",
                                    'test "$SORTIE_ATTEMPT" = 2 || exec sleep 1000'],
                                   env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
            try:
                pids = wait_until(lambda: (found := small.command(*inside, "sh", "-c", "pgrep -x -f 'sleep 1000' || true").split())
                                  and len(found) == 2 and found, 60, "two ranks")
                first = small.command(*inside, "ctr", "container", "ls", "--quiet").split()
                equal(len(first), 1, f"containers of attempt 1 ({first})")
                labels = json.loads(small.command(*inside, "ctr", "container", "info", first[0]))["Labels"]
                stale = {name: labels[name] for name in ("sortie.run", "sortie.attempt", "sortie.node", "sortie.uid")}
                stale["sortie.folder"] = "/tmp/sortie-gone/1"
                options = [word for name, value in stale.items() for word in ("--label", f"{name}={value}")]
                small.command(*inside, "ctr", "run", "--detach", "--null-io", *options, image, "stale", "sleep", "2000")
                small.command(*inside, "kill", "-KILL", pids[0])
                equal(run.wait(60), 0, f"exit code ({(where / 'output').read_text()[-2000:]})")
                wait_until(lambda: not small.command(*inside, "ctr", "container", "ls", "--quiet").strip(), 15, "no container left")
                wait_until(lambda: seen(" /containers/delete ") >= 3, 15, "the end of three containers in containerd's journal")
            except BaseException:
                print((where / "output").read_text()[-4000:], flush=True)
                raise
            finally:
                for process in (run, watch):
                    process.kill()
                    process.wait()
        lines = (where / "journal").read_text().splitlines()

        def line_of(what, name):
            found = [at for at, line in enumerate(lines) if f" /containers/{what} " in line and f'"{name}"' in line]
            equal(len(found), 1, f"/containers/{what} of {name} in containerd's journal")
            return found[0]
        made = [json.loads(line[line.index("{"):])["id"] for line in lines if " /containers/create " in line]
        equal(len(made), 3, f"containers that were made ({made})")
        for name in (first[0], "stale"):
            check(line_of("delete", name) < line_of("create", made[-1]), f"{name} was still there when {made[-1]} was made: {lines}")


def scenario_all_ranks_killed_at_once_and_the_memory_of_the_hosts_is_enough(bed):
    """The memory is outside of the containers, and the next ones find it. No checkpoint is on disk before the end."""
    before = {}

    def at_once(run):
        victims = ranks_of(run, 1, 2)
        wait_until(lambda: max(losses(run), default=0) >= 12, 60, "step 12")
        kill_at_once([pid for _, pid in victims.values()])
        resumed = wait_until(lambda: events(run, "resumed")[1:], 60, "attempt 2")[0]
        equal(resumed["from"], "memory", f"where attempt 2 goes on from ({resumed})")
        check(resumed["lost_steps"] <= 5, f"{resumed}")
        starts = wait_until(lambda: [at for at, event in enumerate(run.metrics()) if event["type"] == "start"][1:], 20, "its start in the metrics")
        before.update({event["step"]: event["loss"] for event in run.metrics()[:starts[0]] if event["type"] == "step"})
        equal(len(memory_on(bed, PLACES[0], run.id())), 1, "folders of the run")

    # Without checkpoints on disk a step takes 2 ms: STEPS would be over before a busy host sees step 12.
    options = {**CALM, "recovery.cordon": "false", "trainer.save_interval": 0, "trainer.memory_checkpoint_interval": 5,
               "trainer.train_iterations": 10 * STEPS}
    run_id, seen, _ = trained(bed, "remembered", options, at_once)
    for step, loss in before.items():
        equal(seen[step], loss, f"loss of step {step}, the second time")
    for host in PLACES:
        equal(memory_on(bed, host, run_id), [], f"memory on {host}")
