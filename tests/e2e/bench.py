"""`sortie-train bench comm` as a job over several hosts."""

import json

from harness import HOSTS, TRAINER, Run, check, equal


def scenario_collectives_and_links_of_4_hosts(bed):
    with Run(bed, TRAINER, "bench", "comm", "--json", "--links", "--link-bytes", "1MB", "--op", "all_reduce,broadcast", "--from",
             "64", "--to", "1MB", "--factor", "128", "--seconds", "0.1", slots=2) as run:
        equal(run.wait(100), 0, "exit code")
        report = json.loads(run.log(0))
    equal((report["schema"], report["ranks"]), ("sortie/bench-comm/1", 8), "report")
    check("Open MPI" in report["library"], f"library {report['library']!r}")
    equal(report["hosts"], [host for host in HOSTS for _ in range(2)], "hosts of the ranks")
    equal([(row["operation"], row["bytes"], row["wrong"]) for row in report["rows"]],
          [(name, size, 0) for name in ("all_reduce", "broadcast") for size in (64, 8192, 1 << 20)], "rows")
    # Links are measured by one rank per host: every pair of hosts, and a ring of the hosts.
    pairs = {(row["from"], row["to"]) for row in report["links"]["pairs"]}
    equal(pairs, {(low, high) for low in HOSTS for high in HOSTS if low < high}, "pairs")
    equal([(row["from"], row["to"]) for row in report["links"]["ring"]], list(zip(HOSTS, HOSTS[1:] + HOSTS[:1])), "ring")
    check(all(row["gbit_s"] > 0 for row in report["links"]["pairs"] + report["links"]["ring"]), f"rates: {report['links']}")
