// Reports of a host without faults. Tests change one thing at a time.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "launcher/check/evaluate.h"

namespace sortie::test {

inline launcher::check::Expectations sound_expectations() {
  launcher::check::Expectations expect;
  expect.program = "/opt/train";
  expect.save_dir = "/ckpt";
  expect.files = {"/data/x.bin"};
  expect.world_size = 4;
  return expect;
}

inline launcher::check::HostResult sound_host(const std::string& name) {
  using namespace launcher::check;
  HostResult host;
  host.host = name;
  host.address = "10.0.0.1";
  host.slots = {0, 1};
  host.reached = true;
  host.stages = {{"resolve", 0.1}, {"connect", 0.2}};
  for (const char* part :
       {R"({"part":"clock","unix_us":1700000000000000})",
        R"({"part":"host","hostname":"x","kernel":"Linux 6.1.0-18 x86_64","cpus":8,
            "memory_bytes":68719476736,"available_bytes":60000000000,"memlock":null,
            "open_files":1024,"cgroup":{"folder":"/sys/fs/cgroup/x","writable":true},
            "run_folders":{"base":"/run/user/0/sortie-0"}})",
        R"({"part":"gpus","nvidia_driver":0,"nvidia_devices":0,"rocm":0})",
        R"({"part":"folder","role":"cache","path":"/root/.cache/sortie","exists":true,
            "free_bytes":9000000000,"free_inodes":1000000,"total_inodes":2000000})",
        R"({"part":"folder","role":"run","path":"/tmp/sortie-0","exists":true,
            "free_bytes":9000000000,"free_inodes":1000000,"total_inodes":2000000})",
        R"({"part":"folder","role":"shm","path":"/dev/shm","exists":true,
            "free_bytes":9000000000,"total_bytes":9000000000})",
        R"({"part":"folder","role":"save_dir","path":"/ckpt","exists":true,"tried":true,
            "writable":true,"free_bytes":9000000000,"sync_us":900})",
        R"({"part":"file","path":"/data/x.bin","size":100,"hash":"00000000000000aa"})",
        R"({"part":"port","port":29500})",
        R"({"part":"program","name":"/opt/train","found":"/opt/train","work_dir":true})",
        R"({"part":"mpi","pmix":"4.2.2","mpi":"Open MPI v4.1.4"})",
        R"({"part":"peer","name":"h0","round_trip_us":200,"mtu":1500,"own_mtu":1500})"})
    REQUIRE(add_part(host.report, part));
  host.asked_peers = {"h0"};
  return host;
}

inline launcher::check::Finding finding_of(const std::vector<launcher::check::HostResult>& hosts,
                                           const launcher::check::Expectations& expect,
                                           const std::string& check, std::size_t host) {
  const auto findings = launcher::check::evaluate(hosts, expect);
  const auto found = std::ranges::find(findings.at(host), check, &launcher::check::Finding::check);
  REQUIRE(found != findings[host].end());
  return *found;
}

}  // namespace sortie::test
