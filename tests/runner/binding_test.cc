// CPU binding of ranks, and MPI programs on a host without PMIx. Real runner, real processes.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "common/cpu/binding.h"
#include "runner/job/environment.h"
#include "runner/mpi/mpi_program.h"
#include "tests/support/runner_client.h"

using namespace sortie;
using namespace sortie::runner;
using namespace sortie::test;

namespace {

const std::vector<std::string> kShowCpus = {
    "sh", "-c", "sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status; echo $OMP_NUM_THREADS"};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ReadAt reader_of(const std::string& bytes) {
  return [&bytes](std::uint64_t offset, std::span<char> to) {
    if (offset > bytes.size() || to.size() > bytes.size() - offset) return false;
    bytes.copy(to.data(), to.size(), offset);
    return true;
  };
}

}  // namespace

TEST_CASE("bound ranks are where JobReady says, and have threads for it") {
  const cpu::CpuList mine = cpu::allowed_cpus();
  const cpu::Topology topology = cpu::read_topology("/", mine);
  for (const auto binding : {wire::CpuBinding::automatic, wire::CpuBinding::core,
                             wire::CpuBinding::numa, wire::CpuBinding::none}) {
    CAPTURE(static_cast<int>(binding));
    wire::JobSpec job = make_job(kShowCpus, 2);
    job.cpu_binding = binding;
    RunnerClient client;
    const auto ready = client.prepare(job);
    REQUIRE(ready);
    client.send(wire::Start{});
    REQUIRE(client.wait_finished());
    const bool bound = binding != wire::CpuBinding::none && topology.cores.size() >= 2;
    REQUIRE(ready->cpu_sets.size() == (bound ? 2u : 0u));
    CHECK(ready->binding.starts_with(!bound                              ? "none: "
                                     : binding == wire::CpuBinding::numa ? "numa: "
                                                                         : "core: "));
    for (const std::uint32_t rank : {0u, 1u}) {
      const std::string set = bound ? ready->cpu_sets[rank] : cpu::cpu_list_text(mine);
      const std::string& out = client.out[rank];
      CHECK(out.substr(0, out.find('\n')) == set);
      CHECK(std::stoul(out.substr(out.find('\n') + 1)) >= 1);
    }
    if (bound && binding != wire::CpuBinding::numa) CHECK(ready->cpu_sets[0] != ready->cpu_sets[1]);
  }
}

TEST_CASE("more ranks than cores, and a rank alone, keep all CPUs") {
  wire::JobSpec job = make_job(kShowCpus, 1);
  job.cpu_binding = wire::CpuBinding::automatic;
  RunnerClient alone;
  const auto ready = alone.prepare(job);
  REQUIRE(ready);
  CHECK(ready->binding == "none: one rank has the whole host");
  const auto cores =
      static_cast<std::uint32_t>(cpu::read_topology("/", cpu::allowed_cpus()).cores.size());
  if (cores >= 64) return;  // starting that many ranks is beyond this test
  wire::JobSpec crowd = make_job({"true"}, cores + 1);
  crowd.cpu_binding = wire::CpuBinding::core;
  RunnerClient crowded;
  const auto crowd_ready = crowded.prepare(crowd);
  REQUIRE(crowd_ready);
  CHECK(crowd_ready->binding.starts_with("none: "));
  CHECK(crowd_ready->cpu_sets.empty());
}

TEST_CASE("threads follow the binding, and AMD hosts get their own variable alone") {
  wire::JobSpec job = make_job({"x"}, 2);
  job.ranks[0].env = {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
                      {"CUDA_VISIBLE_DEVICES", "0,1"},
                      {"ROCR_VISIBLE_DEVICES", "0,1"}};
  RankContext context;
  context.cpus = 16;
  const auto value = [&](const char* name) {
    const auto env = rank_environment({}, job, job.ranks[0], context);
    return std::string(env_value(env, name));
  };
  CHECK(value("OMP_NUM_THREADS") == "8");
  context.threads = 6;
  CHECK(value("OMP_NUM_THREADS") == "6");
  CHECK(value("CUDA_VISIBLE_DEVICES") == "0,1");
  context.amd_gpus = true;
  CHECK(value("CUDA_VISIBLE_DEVICES") == "");
  CHECK(value("CUDA_DEVICE_ORDER") == "");
  CHECK(value("ROCR_VISIBLE_DEVICES") == "0,1");
  job.env = {{"CUDA_VISIBLE_DEVICES", "3"}};  // the user's own
  CHECK(value("CUDA_VISIBLE_DEVICES") == "3");
}

TEST_CASE("the libraries that a program needs, from its file") {
  const auto mpi = needed_libraries(SORTIE_MPI_PROGRAM);
  REQUIRE(mpi);
  CHECK(mpi_library(*mpi).starts_with("libmpi.so"));
  const auto shell = needed_libraries("/bin/sh");
  REQUIRE(shell);
  CHECK_FALSE(shell->empty());
  CHECK(mpi_library(*shell) == "");
#ifdef SORTIE_RUNNER_IS_STATIC
  const auto none = needed_libraries(SORTIE_RUNNER_BINARY);
  REQUIRE(none);
  CHECK(none->empty());
#endif
  CHECK(mpi_library({"libc.so.6", "libmpich.so.12"}) == "libmpich.so.12");
  CHECK(mpi_library({"libmpi_mpifh.so.40"}) == "libmpi_mpifh.so.40");
  CHECK(mpi_library({"libmpiwrap.so", "libmpirt.so"}) == "");
  CHECK(needed_libraries("/nowhere").error().message.starts_with("/nowhere"));
  CHECK_FALSE(needed_libraries("/proc/self/status"));
  CHECK_FALSE(needed_libraries("/tmp"));
}

TEST_CASE("a broken program file gives an error or names, and nothing else") {
  const std::string whole = content(SORTIE_MPI_PROGRAM);
  REQUIRE(whole.size() > 4096);
  for (std::size_t length = 0; length < 4096; length += 7) {
    const std::string part = whole.substr(0, length);
    const auto needed = needed_libraries(reader_of(part));
    if (length < 64) CHECK_FALSE(needed);
  }
  for (std::size_t at = 0; at < 1024; ++at) {  // each byte of the headers, set to all ones
    std::string bytes = whole;
    bytes[at] = static_cast<char>(0xff);
    const auto needed = needed_libraries(reader_of(bytes));
    if (needed)
      for (const std::string& name : *needed) CHECK(name.size() <= 255);
  }
}

TEST_CASE("without libpmix an MPI program is refused, and all else runs") {
  wire::JobSpec job = make_job({SORTIE_MPI_PROGRAM, "ring"}, 2);
  job.nodes.front().ranks = 2;
  job.mpi = 1;
  job.env = {{"SORTIE_LIBPMIX", "/nowhere/libpmix.so.2"}};
  SUBCASE("ranks that would not find each other") {
    RunnerClient client;
    CHECK_FALSE(client.prepare(job));
    REQUIRE(client.errors.size() == 1);
    CHECK(client.errors[0].code == "unsupported");
    const std::string& message = client.errors[0].message;
    CAPTURE(message);
    CHECK(message.find("is an MPI program (it needs libmpi.so") != std::string::npos);
    CHECK(message.find("install libpmix2 (Debian, Ubuntu) or pmix (Fedora, RHEL)") !=
          std::string::npos);
  }
  SUBCASE("found in the PATH of the rank") {
    const std::string program = SORTIE_MPI_PROGRAM;
    job.argv[0] = program.substr(program.rfind('/') + 1);
    job.env.emplace_back("PATH", "/nowhere:" + program.substr(0, program.rfind('/')));
    RunnerClient client;
    CHECK_FALSE(client.prepare(job));
    REQUIRE(client.errors.size() == 1);
    CHECK(client.errors[0].code == "unsupported");
  }
  SUBCASE("a single rank needs nobody") {
    job = make_job({SORTIE_MPI_PROGRAM, "ring"}, 1);
    job.mpi = 1;
    job.env = {{"SORTIE_LIBPMIX", "/nowhere/libpmix.so.2"}};
    RunnerClient client;
    const auto ready = client.prepare(job);
    REQUIRE(ready);
    CHECK(ready->pmix.starts_with("none: "));
  }
  SUBCASE("a program without MPI") {
    job.argv = {"sh", "-c", "exit 0"};
    RunnerClient client;
    CHECK(client.run(job));
  }
  SUBCASE("unconnected, because the user says so") {
    job.mpi = 0;
    RunnerClient client;
    CHECK(client.prepare(job));
  }
}
