// From facts to verdicts: PASS, WARN and FAIL of every check, from reports as hosts send them.
#include "launcher/check/evaluate.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "launcher/check/pairs.h"
#include "launcher/check/requests.h"
#include "tests/launcher/check/reports.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::launcher::check;
using namespace sortie::test;
namespace fs = std::filesystem;

namespace {

Verdict verdict_of(const std::vector<HostResult>& hosts, const Expectations& expect,
                   const std::string& check, std::size_t host = 0) {
  return finding_of(hosts, expect, check, host).verdict;
}

}  // namespace

TEST_CASE("hosts without a fault pass every check") {
  const std::vector<HostResult> hosts = {sound_host("h1"), sound_host("h2")};
  const auto findings = evaluate(hosts, sound_expectations());
  REQUIRE(findings.size() == 2);
  for (const auto& list : findings) {
    CHECK(list.size() == check_names(sound_expectations()).size());
    for (const Finding& finding : list) {
      CAPTURE(finding.check);
      CAPTURE(finding.reason);
      CHECK(finding.verdict == Verdict::pass);
      CHECK(finding.fix.empty());
    }
  }
  CHECK(worst(findings) == Verdict::pass);
}

TEST_CASE("what is staged is looked for on this machine, and asked of no host") {
  const ScopedTempDir dir;
  fs::create_directory(dir / "books");
  write_text(dir / "books/a.bin", std::string(1000, 'x'));
  write_text(dir / "books/a.idx", std::string(24, 'x'));
  launcher::JobOptions options;
  options.overrides = {"runner.stage=[\"" + dir.str("books") + "\"]",
                       "data.data_prefixes=[\"{stage}/books/a\", \"{stage}/books/b\"]",
                       "data.tokenizer=byte", "model.preset=gpt2-124m"};
  write_text(dir / "job.toml", "");
  options.config = dir.str("job.toml");
  const auto job = launcher::plan_job(options);
  REQUIRE_MESSAGE(job, job.error().message);
  const Expectations expect = expectations(*job, /*only_hosts=*/false);
  CHECK(expect.files.empty());
  CHECK(expect.staged_bytes == 1024);
  HostResult host = sound_host("h1");
  Finding finding = judge_staged(host, expect);
  CHECK(finding.verdict == Verdict::fail);
  CHECK(finding.reason.find("{stage}/books/b.bin: " + dir.str("books/b.bin")) == 0);
  CHECK(finding.reason.find("books/a") == finding.reason.npos);
  for (const char* name : {"b.bin", "b.idx"}) write_text(dir / "books" / name, "x");
  finding = judge_staged(host, expectations(*job, false));
  CHECK(finding.verdict == Verdict::pass);
  CHECK(finding.reason == "5 paths are on this machine, 1.0 KiB go to the host before ranks start");
  host.report.folders[0].free_bytes = 500;  // of the cache folder
  CHECK(judge_staged(host, expectations(*job, false)).verdict == Verdict::warn);
}

TEST_CASE("a host that was not reached fails with its stage, and nothing else is said of it") {
  std::vector<HostResult> hosts = {sound_host("h1"), HostResult{}};
  hosts[1].host = "h2";
  hosts[1].error = Error{ErrorCode::connect, "10.0.0.2 port 22: Connection refused"};
  const auto findings = evaluate(hosts, sound_expectations());
  for (const Finding& finding : findings[1])
    CHECK(finding.verdict == (finding.check == "ssh" ? Verdict::fail : Verdict::none));
  CHECK(findings[1][0].reason.starts_with("connect: 10.0.0.2"));
  CHECK_FALSE(findings[1][0].fix.empty());
}

TEST_CASE("clocks: what the way there and back can explain is no skew") {
  const auto clock = [](double offset_ms, double error_ms) {
    HostResult host = sound_host("h1");
    host.clock_offset_ms = offset_ms;
    host.clock_error_ms = error_ms;
    return judge_clock(host);
  };
  CHECK(clock(900, 5).verdict == Verdict::pass);
  CHECK(clock(1100, 200).verdict == Verdict::pass);
  CHECK(clock(-1500, 5).verdict == Verdict::warn);
  CHECK(clock(-1500, 5).reason == "1.5 s behind this machine's clock");
  CHECK(clock(61000, 5).verdict == Verdict::fail);
}

TEST_CASE("cores, memory, limits against the slots") {
  HostResult host = sound_host("h1");
  host.report.host->cpus = 1;
  CHECK(judge_cores(host).verdict == Verdict::warn);
  host.report.host->available_bytes = 1u << 30;  // for two slots
  CHECK(judge_memory(host).verdict == Verdict::warn);
  host.report.host->memlock = 8u << 20;
  CHECK(judge_memlock(host).verdict == Verdict::pass);
  host.report.host->infiniband = true;
  CHECK(judge_memlock(host).verdict == Verdict::warn);
  Expectations expect = sound_expectations();
  host.report.host->open_files = 1024;
  CHECK(judge_open_files(host, expect).verdict == Verdict::pass);
  expect.world_size = 1000;
  CHECK(judge_open_files(host, expect).verdict == Verdict::warn);
  expect.world_size = 2000;
  CHECK(judge_open_files(host, expect).verdict == Verdict::fail);
  host.report.host->runs_left = 1;
  CHECK(judge_leftovers(host).verdict == Verdict::warn);
}

TEST_CASE("a host on which the folder of runs can not be made fails: no rank could start") {
  HostResult host = sound_host("h1");
  CHECK(judge_run_folder(host).verdict == Verdict::pass);
  CHECK(judge_run_folder(host).reason == "/run/user/0/sortie-0");
  REQUIRE(add_part(
      host.report,
      R"({"part":"host","run_folders":{"error":"/tmp/sortie-7: \u001bPermission denied"}})"));
  const Finding bad = finding_of({host}, sound_expectations(), "run_folder", 0);
  CHECK(bad.verdict == Verdict::fail);
  CHECK(bad.reason.starts_with("no rank can start: /tmp/sortie-7: "));
  CHECK(bad.reason.find('\x1b') == std::string::npos);  // a host is not trusted
  CHECK(bad.fix.find("XDG_RUNTIME_DIR") != std::string::npos);
  // The contents of the folder are not known; what else is known is still reported.
  CHECK(judge_leftovers(host).verdict == Verdict::none);
  host.report.host->cgroups_left = 1;
  CHECK(judge_leftovers(host).verdict == Verdict::warn);
}

TEST_CASE("ranks that are held without a launcher, and what adopts or ends them") {
  HostResult host = sound_host("h1");
  REQUIRE(add_part(host.report,
                   R"({"part":"host","run_folders":{"base":"/tmp/x","held":{"count":2},
          "without_launcher":[{"run":"k3f9","seconds_left":700},{"run":"\u001bb","seconds_left":-1},7]}})"));
  const Finding held = judge_leftovers(host);
  CHECK(held.verdict == Verdict::warn);
  CHECK(held.reason.starts_with(
      "run k3f9 has no launcher; its ranks are held here for at most 12 minutes more; run "));
  CHECK(held.reason.find('\x1b') == std::string::npos);  // a host is not trusted
  CHECK(held.reason.ends_with(" for at most 1 minute more"));
  CHECK(held.fix.find("attach --adopt k3f9` goes on with them") != std::string::npos);
  CHECK(held.fix.find("stop k3f9` ends them") != std::string::npos);
}

TEST_CASE("a host that runner.transport does not reach: nothing is said of ssh") {
  HostResult host;
  host.host = "h1";
  Expectations expect = sound_expectations();
  for (const ErrorCode code : {ErrorCode::connect, ErrorCode::timeout, ErrorCode::config}) {
    host.error = Error{code, "runner.transport: sh ended"};
    expect.over_transport = false;
    CHECK(judge_ssh(host, expect).fix.find("ssh") != std::string::npos);
    expect.over_transport = true;
    CHECK(judge_ssh(host, expect).fix.find("runner.transport") != std::string::npos);
    CHECK(judge_ssh(host, expect).fix.find("ssh") == std::string::npos);
  }
}

TEST_CASE("without a writable cgroup OOM kills are very likely, as the report of a run says") {
  HostResult host = sound_host("h1");
  CHECK(judge_cgroup(host).reason == "v2, writable");
  host.report.host->cgroup_writable = false;
  CHECK(judge_cgroup(host).verdict == Verdict::pass);
  CHECK(judge_cgroup(host).reason.find("very likely") != std::string::npos);
}

TEST_CASE("gpus: a fault of nvidia-smi, a slot beyond the last, a host without") {
  std::vector<HostResult> hosts = {sound_host("h1"), sound_host("h2"), sound_host("h3")};
  Expectations expect = sound_expectations();
  const auto with = [](std::size_t count) {
    GpuFacts gpus;
    gpus.smi = "/usr/bin/nvidia-smi";
    gpus.driver = gpus.devices = count;
    gpus.gpus.resize(count);
    for (OneGpu& gpu : gpus.gpus) gpu.name = "NVIDIA H100";
    return gpus;
  };
  hosts[0].report.gpus = with(2);
  hosts[1].report.gpus = with(1);  // but the host has slots 0 and 1
  const auto found = judge_gpus(hosts, expect);
  CHECK(found[0].verdict == Verdict::pass);
  CHECK(found[0].reason == "2 x NVIDIA H100");
  CHECK(found[1].verdict == Verdict::warn);
  CHECK(found[2].verdict == Verdict::warn);
  expect.device = "cuda";  // then the ranks would end at once
  CHECK(judge_gpus(hosts, expect)[0].verdict == Verdict::pass);
  CHECK(judge_gpus(hosts, expect)[1].verdict == Verdict::fail);
  CHECK(judge_gpus(hosts, expect)[2].verdict == Verdict::fail);
  CHECK(judge_gpus({sound_host("h3")}, expect)[0].reason.find("trainer.device") !=
        std::string::npos);
  expect.device = "";
  hosts[0].report.gpus->smi_error = "exit code 255: Unable to determine the device handle";
  CHECK(judge_gpus(hosts, expect)[0].verdict == Verdict::fail);
  hosts[1].report.gpus->driver = 2;
  CHECK(judge_gpus(hosts, expect)[1].verdict == Verdict::fail);

  // Drivers: equal ones, one that is too old, different ones.
  hosts[0].report.gpus = hosts[1].report.gpus = with(2);
  hosts[0].report.gpus->driver_version = hosts[1].report.gpus->driver_version = "580.65.06";
  CHECK(judge_gpus(hosts, expect)[0].verdict == Verdict::pass);
  CHECK(judge_gpus(hosts, expect)[0].reason == "2 x NVIDIA H100, driver 580.65.06");
  hosts[1].report.gpus->driver_version = "570.10";
  expect.program.clear();  // only hosts are checked
  CHECK(judge_gpus(hosts, expect)[1].verdict == Verdict::warn);
  CHECK(judge_gpus(hosts, expect)[1].reason.find("needs driver 580 or newer") != std::string::npos);
  hosts[0].report.gpus->driver_version = "590.1";
  hosts[1].report.gpus->driver_version = "600.1";
  const auto differ = judge_gpus(hosts, expect);
  CHECK((differ[0].verdict == Verdict::warn) != (differ[1].verdict == Verdict::warn));
}

TEST_CASE("folders: space, inodes, writing, shared memory against ranks") {
  std::vector<HostResult> hosts = {sound_host("h1")};
  const Expectations expect = sound_expectations();
  auto& folders = hosts[0].report.folders;
  const auto folder = [&](const char* role) -> FolderFacts& {
    return *std::ranges::find(folders, role, &FolderFacts::role);
  };
  folder("cache").free_bytes = 500u << 20;
  CHECK(verdict_of(hosts, expect, "disk") == Verdict::warn);
  folder("run").free_inodes = 5;
  CHECK(verdict_of(hosts, expect, "disk") == Verdict::fail);
  folder("save_dir").sync_us = 3000000;
  CHECK(verdict_of(hosts, expect, "save_dir") == Verdict::warn);
  folder("save_dir").writable = false;
  folder("save_dir").error = "Permission denied";
  CHECK(verdict_of(hosts, expect, "save_dir") == Verdict::fail);
  folder("shm").free_bytes = 64u << 20;
  CHECK(verdict_of(hosts, expect, "shm") == Verdict::warn);
  folder("shm").free_bytes = 15u << 20;
  CHECK(verdict_of(hosts, expect, "shm") == Verdict::fail);
}

TEST_CASE("data: the file here is the right one, else what most hosts have") {
  std::vector<HostResult> hosts = {sound_host("h1"), sound_host("h2"), sound_host("h3")};
  Expectations expect = sound_expectations();
  hosts[1].report.files[0].hash = "0000000000000001";
  CHECK(verdict_of(hosts, expect, "data", 0) == Verdict::pass);
  CHECK(verdict_of(hosts, expect, "data", 1) == Verdict::fail);
  CHECK(finding_of(hosts, expect, "data", 1).reason ==
        "/data/x.bin: other content, not what most hosts have");
  hosts[2].report.files[0].error = "No such file or directory";
  CHECK(verdict_of(hosts, expect, "data", 2) == Verdict::fail);
  expect.local_files["/data/x.bin"] = {100, 1};
  CHECK(verdict_of(hosts, expect, "data", 0) == Verdict::fail);
  CHECK(verdict_of(hosts, expect, "data", 1) == Verdict::pass);
  hosts[1].report.files[0].size = 99;
  CHECK(finding_of(hosts, expect, "data", 1).reason ==
        "/data/x.bin: 99 bytes instead of 100, not the one here");
}

TEST_CASE("a host without the work folder: a failure if the key is set, else a warning") {
  std::vector<HostResult> hosts = {sound_host("h1"), sound_host("h2")};
  hosts[1].report.program->work_dir = false;
  Expectations expect = sound_expectations();
  CHECK(verdict_of(hosts, expect, "program", 0) == Verdict::pass);
  CHECK(verdict_of(hosts, expect, "program", 1) == Verdict::warn);
  expect.work_dir = "/scratch/me";
  CHECK(verdict_of(hosts, expect, "program", 0) == Verdict::pass);
  CHECK(verdict_of(hosts, expect, "program", 1) == Verdict::fail);
  CHECK(finding_of(hosts, expect, "program", 1).reason ==
        "runner.work_dir: /scratch/me is no folder there");
}

TEST_CASE("program, port, MPI, kernel") {
  std::vector<HostResult> hosts = {sound_host("h1"), sound_host("h2"), sound_host("h3")};
  const Expectations expect = sound_expectations();
  hosts[0].report.program->missing = {"libfoo.so.1"};
  CHECK(verdict_of(hosts, expect, "program", 0) == Verdict::fail);
  hosts[0].report.program = ProgramFacts{"train", "", "No such file or directory", true, {}};
  CHECK(finding_of(hosts, expect, "program", 0).reason == "train: No such file or directory");
  hosts[0].report.port = PortFacts{29500, "Address already in use"};
  CHECK(verdict_of(hosts, expect, "port", 0) == Verdict::fail);
  hosts[1].report.mpi->pmix = "4.2.1";
  CHECK(verdict_of(hosts, expect, "mpi", 0) == Verdict::pass);
  CHECK(verdict_of(hosts, expect, "mpi", 1) == Verdict::warn);
  hosts[1].report.mpi->pmix_error = "libpmix not found";
  CHECK(verdict_of(hosts, expect, "mpi", 1) == Verdict::fail);
  hosts[2].report.mpi.reset();
  CHECK(verdict_of(hosts, expect, "mpi", 2) == Verdict::pass);
  hosts[2].report.program->missing = {"libfoo.so.1"};
  CHECK(finding_of(hosts, expect, "mpi", 2).reason == "the program is not linked with libmpi");
  hosts[2].report.program->missing = {"libfoo.so.1", "libmpi.so.40"};
  CHECK(verdict_of(hosts, expect, "mpi", 2) == Verdict::none);
  hosts[0].report.mpi.reset();  // the program of this host was not found
  CHECK(verdict_of(hosts, expect, "mpi", 0) == Verdict::none);
  hosts[1].report.host->kernel = "5.15.0-91-generic";
  CHECK(verdict_of(hosts, expect, "kernel", 1) == Verdict::warn);
  hosts[2].report.host->kernel = "6.1.9";
  CHECK(verdict_of(hosts, expect, "kernel", 2) == Verdict::pass);
  hosts[2].report.host->machine = "aarch64";
  CHECK(verdict_of(hosts, expect, "kernel", 2) == Verdict::fail);
}

TEST_CASE("network: no way, packets that vanish, a slow way") {
  std::vector<HostResult> hosts = {sound_host("h1"), sound_host("h2"), sound_host("h3")};
  const Expectations expect = sound_expectations();
  const auto peers = [](HostResult& host, std::vector<PeerFacts> facts) {
    for (const PeerFacts& peer : facts) host.asked_peers.push_back(peer.name);
    host.report.peers = std::move(facts);
  };
  for (HostResult& host : hosts) host.asked_peers.clear();
  peers(hosts[0],
        {{"h2", "", 300, 200, 1500, 1500, false}, {"h3", "", 300, 210, 1500, 1500, false}});
  peers(hosts[1], {{"h1", "", 300, 200, 1500, 1500, false},
                   {"h3", "no answer within 2000 ms", 0, 0, 0, 0, false}});
  peers(hosts[2], {{"h1", "", 300, 220, 1400, 9000, false}, {"h2", "", 300, 200, 0, 9000, false}});
  CHECK(verdict_of(hosts, expect, "network", 0) == Verdict::pass);
  CHECK(finding_of(hosts, expect, "network", 1).reason == "no way to h3: no answer within 2000 ms");
  CHECK(finding_of(hosts, expect, "network", 2).reason ==
        "packets over 1400 bytes vanish on the way to h1 (MTU here: 9000)");
  CHECK(verdict_of(hosts, expect, "network", 2) == Verdict::fail);
  hosts[2].report.peers[0].mtu_reported = true;
  CHECK(verdict_of(hosts, expect, "network", 2) == Verdict::warn);
  hosts[0].report.peers[1].round_trip_us = 30000;
  CHECK(verdict_of(hosts, expect, "network", 0) == Verdict::warn);
  hosts[0].report.peers.pop_back();  // requested but not answered
  CHECK(verdict_of(hosts, expect, "network", 0) == Verdict::fail);
}

TEST_CASE("bandwidth: less than half of what is usual") {
  std::vector<HostResult> hosts = {sound_host("h1"), sound_host("h2"), sound_host("h3")};
  Expectations expect = sound_expectations();
  expect.bandwidth = true;
  const std::uint64_t sent[] = {1000000000, 1100000000, 400000000};
  for (std::size_t i = 0; i < 3; ++i) {
    hosts[i].asked_bandwidth = "hx";
    hosts[i].report.bandwidth = BandwidthFacts{"hx", "", sent[i], 1000000};
  }
  CHECK(finding_of(hosts, expect, "bandwidth", 0).reason == "8.00 Gbit/s to hx");
  CHECK(verdict_of(hosts, expect, "bandwidth", 2) == Verdict::warn);
  hosts[1].report.bandwidth.reset();
  CHECK(verdict_of(hosts, expect, "bandwidth", 1) == Verdict::fail);
}

TEST_CASE("the address that others are given: the chosen network, else where it was reached") {
  const std::vector<std::string> all = {"lo 127.0.0.1/8", "eth0 10.0.0.7/24", "ib0 10.1.2.3/16",
                                        "eth0 fd00::7/64"};
  CHECK(address_on(all, "ib0") == "10.1.2.3");
  CHECK(address_on(all, "e*") == "10.0.0.7");
  CHECK(address_on(all, "10.1.0.0/16") == "10.1.2.3");
  CHECK(address_on(all, "fd00::/64") == "fd00::7");
  CHECK(address_on(all, "10.2.0.0/16") == "");
  CHECK(address_on(all, "eth1") == "");
  CHECK(address_on({"nonsense"}, "eth1") == "");
  HostResult host = sound_host("h1");
  CHECK(reach_address(host, {}, "") == "10.0.0.1");
  host.report.host->addresses = all;
  CHECK(reach_address(host, {}, "ib0") == "10.1.2.3");
  host.address.clear();
  host.report.host->ssh_address = "10.9.9.9";
  CHECK(reach_address(host, {}, "") == "10.9.9.9");
  // With a transport other than SSH neither address exists. The address is chosen as in a run: not
  // that of the bridge that all hosts have.
  host.report.host->ssh_address.clear();
  HostResult second = sound_host("h2"), third = sound_host("h3");
  host.report.host->hostname = "first";
  host.report.host->addresses = {"lo 127.0.0.1/8", "docker0 172.17.0.1/16", "eth1 192.168.5.1/24",
                                 "eth0 10.0.0.7/24"};
  for (HostResult* other : {&second, &third}) other->address.clear();
  second.report.host->addresses = {"docker0 172.17.0.1/16", "eth0 10.0.0.8/24"};
  third.report.host->addresses = {"docker0 172.17.0.1/16", "eth0 10.0.0.9/24"};
  CHECK(reach_address(host, {&second, &third}, "") == "10.0.0.7");
  CHECK(reach_address(second, {&host, &third}, "") == "10.0.0.8");
  host.host = "localhost";
  second.address = "127.0.0.1";
  CHECK(reach_address(host, {&second}, "") == "127.0.0.1");
}

TEST_CASE("peers: all to all up to 32 hosts, beyond that a ring and a few more") {
  const auto all = choose_peers(32, 1);
  for (std::size_t i = 0; i < 32; ++i) CHECK(all[i].size() == 31);
  CHECK(choose_peers(1, 1)[0].empty());
  const auto some = choose_peers(1000, 1);
  for (std::size_t i = 0; i < 1000; ++i) {
    CHECK(some[i].size() == 1 + kRandomPeers);
    CHECK(some[i][0] == (i + 1) % 1000);
    CHECK(std::ranges::find(some[i], i) == some[i].end());
  }
}
