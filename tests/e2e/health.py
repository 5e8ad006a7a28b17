"""Health of hosts while a job runs. A scenario puts its own kernel log in place of /dev/kmsg, as seen by one host."""

import contextlib
import json
import subprocess

from harness import SORTIE, Gates, Run, check, equal, run_to_end, wait_until, whole_events

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class KernelLog:
    """A file in the host's own /tmp, mounted over /dev/kmsg only in that host's namespaces."""

    def __init__(self, bed, host):
        self.bed, self.host = bed, host

    def __enter__(self):
        self.bed.run_in(self.host, "sh", "-c", "umask 022; : > /tmp/kernel-log; mount --bind /tmp/kernel-log /dev/kmsg",
                        as_root=True)
        return self

    def __exit__(self, *_error):
        with contextlib.suppress(Exception):
            self.bed.run_in(self.host, "sh", "-c", "umount /dev/kmsg; rm -f /tmp/kernel-log", as_root=True)

    def say(self, text, facility=0):
        self.bed.run_in(self.host, "sh", "-c", 'printf "%s\\n" "$1" >> /tmp/kernel-log', "say",
                        f"{facility * 8 + 4},1,1000,-;{text}", as_root=True)


def health_events(run, host, kind):
    folder = run.folder_of_run()
    events = whole_events(folder / "events.jsonl") if folder and (folder / "events.jsonl").exists() else []
    return [event for event in events if event["event"] == "health" and event["host"] == host and event["kind"] == kind]


def ask(run, verb, *options):
    done = run_to_end(SORTIE, verb, run.folder_of_run(), *options, seconds=30)
    equal(done.returncode, 0, f"the exit code of {verb} ({done.stderr})")
    return done.stdout


def helpers(bed, host):
    return [pid for pid, _, _, _, command in bed.processes(host) if command.startswith("sortie-health")]


def scenario_xid_79_on_one_host_is_in_journal_status_and_report(bed):
    with KernelLog(bed, "h03") as log, Gates(bed) as gates, \
            Run(bed, "sh", "-c", gates.wait("go"), hosts="h[02-03]", slots=1) as run:
        run.wait_for_ranks(2, 60)
        sources = wait_until(lambda: health_events(run, "h03", "sources"), 60, "what is watched on h03")
        check("kernel log" in sources[0]["text"] and "no kernel log" not in sources[0]["text"], f"sources: {sources}")
        log.say("NVRM: Xid (PCI:0000:3b:00): 79, written by a process", facility=1)
        log.say("usb 1-1: new device")
        log.say(XID)
        event = wait_until(lambda: health_events(run, "h03", "xid"), 60, "the XID in the journal")[0]
        equal(event["code"], 79, "its code")
        equal(event["class"], "hardware", "its class")
        equal(event["action"], "cordon", "its action")
        equal(event["device"], "0000:3b:00.0", "its device")
        equal(event["command"], "ssh h03 sudo systemctl reboot", "the command")
        run.wait_for_text(r"h03: 0000:3b:00\.0: XID 79: the GPU has fallen off the bus; to repair it: "
                          "ssh h03 sudo systemctl reboot")
        status = ask(run, "status")
        check("health: cordon: 0000:3b:00.0: XID 79" in status, status)
        check("ssh h03 sudo systemctl reboot" in status, status)
        hosts = {host["name"]: host for host in json.loads(ask(run, "status", "--json"))["hosts"]}
        equal([item["code"] for item in hosts["h03"]["health"] if "code" in item], [79], "the codes of h03 in status")
        check(not [item for item in hosts["h02"]["health"] if item["action"] == "cordon"], "h02 is well")
        gates.open("go")
        equal(run.wait(60), 0, "the exit code: the job itself was well")
        report = ask(run, "report")
        check("health of hosts:\n  h03: cordon: 0000:3b:00.0: XID 79" in report, report)
        check(XID[:60] in report, report)
        equal(len(health_events(run, "h03", "xid")), 1, "findings: a process can not make one")


def scenario_the_helper_dies_and_the_job_goes_on(bed):
    with Gates(bed) as gates, Run(bed, "sh", "-c", gates.wait("go"), hosts="h[01-02]", slots=1) as run:
        run.wait_for_ranks(2, 60)
        victim = wait_until(lambda: helpers(bed, "h02"), 60, "sortie-health on h02")[0]
        subprocess.run(["kill", "-9", str(victim)], check=True)
        wait_until(lambda: health_events(run, "h02", "helper_lost"), 60, "the end of sortie-health in the journal")
        wait_until(lambda: helpers(bed, "h02"), 90, "another sortie-health on h02")
        gates.open("go")
        equal(run.wait(60), 0, "the exit code")


def scenario_a_work_folder_that_is_nearly_full(bed):
    small = "/tmp/small"
    bed.run_in("h01", "sh", "-c", f"mkdir -p {small}; mount -t tmpfs -o size=64m,mode=0777 tmpfs {small}", as_root=True)
    try:
        with Gates(bed) as gates, Run(bed, "sh", "-c", gates.wait("go"), hosts="h01", slots=1,
                                      settings={"runner.work_dir": small}) as run:
            run.wait_for_ranks(1, 60)
            wait_until(lambda: health_events(run, "h01", "sources"), 60, "what is watched on h01")
            bed.run_in("h01", "sh", "-c", f"head -c 65000000 /dev/zero > {small}/filler")
            event = wait_until(lambda: health_events(run, "h01", "space"), 60, "the full folder in the journal")[0]
            equal(event["device"], small, "the folder")
            equal(event["action"], "watch", "the action: no evidence for anything")
            gates.open("go")
            equal(run.wait(60), 0, "the exit code")
    finally:
        bed.run_in("h01", "sh", "-c", f"umount {small}; rmdir {small}", as_root=True)


def scenario_without_the_key_there_is_no_helper(bed):
    with Gates(bed) as gates, Run(bed, "sh", "-c", gates.wait("go"), hosts="h[01-02]", slots=1,
                                  settings={"watchdog.health": "false"}) as run:
        run.wait_for_ranks(2, 60)
        check(not helpers(bed, "h01") and not helpers(bed, "h02"), "sortie-health runs")
        gates.open("go")
        equal(run.wait(60), 0, "the exit code")
        equal(health_events(run, "h01", "sources"), [], "findings")
