// Real MPI programs under real runners, with sortie-pmix extracted from the runner's binary.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "runner/cleanup/run_folder.h"
#include "runner/cleanup/shared_memory.h"
#include "runner/process/process_tree.h"
#include "tests/support/runner_client.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

/// The part for host `node` of a job with two ranks on each of `hosts` hosts.
wire::JobSpec mpi_job(const char* what, const std::string& run_id, std::uint32_t hosts,
                      std::uint32_t node) {
  wire::JobSpec job = make_job({SORTIE_MPI_PROGRAM, what}, 2);
  job.run_id = run_id;
  job.host = "h" + std::to_string(node);
  job.node_rank = node;
  job.mpi = 2;
  job.world_size = 2 * hosts;
  job.nodes = {{"h", 0, 1, "", hosts, 2}};
  for (std::uint32_t local = 0; local < 2; ++local) {
    const std::uint32_t rank = 2 * node + local;
    job.ranks[local].rank = rank;
    job.ranks[local].env = {{"RANK", std::to_string(rank)},
                            {"WORLD_SIZE", std::to_string(job.world_size)},
                            {"LOCAL_WORLD_SIZE", "2"}};
  }
  // The two "hosts" share one kernel: their shared memory files must not collide.
  const std::string shm = "/dev/shm/" + run_id + "-" + std::to_string(node);
  job.env = {{"OMPI_MCA_btl_vader_backing_directory", shm},
             {"OMPI_MCA_btl_tcp_if_include", "lo"},
             {"OMPI_MCA_rmaps_base_oversubscribe", "1"}};
  return job;
}

struct SharedMemoryFolders {
  explicit SharedMemoryFolders(std::string id) : run_id(std::move(id)) {
    for (int node : {0, 1}) std::filesystem::create_directory(path(node));
  }
  ~SharedMemoryFolders() {
    std::error_code ignored;
    for (int node : {0, 1}) std::filesystem::remove_all(path(node), ignored);
  }
  std::string path(int node) const { return "/dev/shm/" + run_id + "-" + std::to_string(node); }
  std::string run_id;
};

std::string fresh_run_id() {
  return make_job({"x"}).run_id;
}

/// Does what the launcher does with fences: collects one from each host, then sends all blobs to
/// all.
void relay_fences(std::vector<std::unique_ptr<RunnerClient>>& clients, milliseconds limit) {
  const auto deadline = steady_clock::now() + limit;
  std::map<std::string, std::vector<std::string>> fences;
  auto all_finished = [&] {
    for (const auto& client : clients)
      if (!client->finished) return false;
    return true;
  };
  while (!all_finished() && steady_clock::now() < deadline) {
    for (const auto& client : clients) {
      const auto message = client->next(milliseconds(5));
      if (!message) continue;
      const auto* fence = std::get_if<wire::PmixFence>(&*message);
      if (!fence) continue;
      CHECK(fence->node_count == clients.size());
      auto& blobs = fences[fence->key];
      blobs.push_back(fence->data);
      if (blobs.size() < clients.size()) continue;
      std::string all;
      for (const std::string& blob : blobs) all += blob;
      for (const auto& other : clients) other->send(wire::PmixFenceDone{fence->key, 0, all});
    }
  }
  CHECK(all_finished());
}

/// The sortie-pmix process of this runner.
pid_t find_pmix(pid_t runner_pid) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (std::atoi(entry.path().filename().c_str()) <= 0) continue;
    std::ifstream stat(entry.path() / "stat");
    const std::string text((std::istreambuf_iterator<char>(stat)), {});
    // It was started from memory, so its comm is the name of a descriptor. argv identifies it.
    std::ifstream command(entry.path() / "cmdline");
    const std::string argv((std::istreambuf_iterator<char>(command)), {});
    if (text.empty() || !argv.starts_with("sortie-pmix")) continue;
    const pid_t keeper = std::stoi(text.substr(text.rfind(')') + 4));
    if (parent_if_alive(keeper) == runner_pid)  // ignores those of other tests
      return std::stoi(entry.path().filename());
  }
  return -1;
}

}  // namespace

TEST_CASE("an MPI program on one host") {
  const SharedMemoryFolders folders(fresh_run_id());
  const wire::JobSpec job = mpi_job("ring", folders.run_id, 1, 0);
  RunnerClient client;
  const auto ready = client.prepare(job);
  REQUIRE(ready);
  CHECK(ready->pmix.starts_with("libpmix "));
  MESSAGE("pmix: " << ready->pmix);
  client.send(wire::Start{});
  REQUIRE(client.wait_finished());
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    CHECK(client.exited.at(rank).code == 0);
    CHECK(client.exited.at(rank).not_finalized == 0);
    CHECK(client.out[rank] == "ok\n");
    CHECK(client.err[rank] == "");
  }
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit()->success());
  CHECK(remains(job) == "");
}

TEST_CASE("an MPI program over two hosts, fences relayed by the launcher") {
  const SharedMemoryFolders folders(fresh_run_id());
  std::vector<std::unique_ptr<RunnerClient>> clients;
  for (std::uint32_t node = 0; node < 2; ++node) {
    clients.push_back(std::make_unique<RunnerClient>());
    REQUIRE(clients.back()->prepare(mpi_job("ring", folders.run_id, 2, node)));
  }
  for (const auto& client : clients) client->send(wire::Start{});
  relay_fences(clients, RunnerClient::kPatience);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    RunnerClient& client = *clients[rank / 2];
    CAPTURE(rank);
    CAPTURE(client.err[rank]);
    REQUIRE(client.exited.contains(rank));
    CHECK(client.exited.at(rank).code == 0);
    CHECK(client.out[rank] == "ok\n");
  }
  for (const auto& client : clients) {
    client->send(wire::Goodbye{});
    CHECK(client->wait_exit()->success());
  }
}

TEST_CASE("a rank that exits with 0 without MPI_Finalize is reported with its exit") {
  const SharedMemoryFolders folders(fresh_run_id());
  const wire::JobSpec job = mpi_job("leave", folders.run_id, 1, 0);
  RunnerClient client;
  REQUIRE(client.start(job));
  const auto exited = client.expect<wire::RankExited>();
  REQUIRE(exited);
  CHECK(exited->rank == 1);
  CHECK(exited->code == 0);
  CHECK(exited->not_finalized == 1);
  client.send(wire::Stop{1000, "rank 1 left"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited.at(0).stopped == 1);
  CHECK(client.exited.at(0).not_finalized == 0);  // a consequence of Stop
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit()->success());
  CHECK(remains(job) == "");
}

TEST_CASE("a sortie-pmix that does not answer delays the report of an exit, no more") {
  const SharedMemoryFolders folders(fresh_run_id());
  wire::JobSpec job = mpi_job("", folders.run_id, 1, 0);
  job.argv = {"/bin/sh", "-c", "sleep 1"};
  RunnerClient client;
  REQUIRE(client.start(job));
  const pid_t server = find_pmix(client.pid());
  REQUIRE(server > 0);
  REQUIRE(::kill(server, SIGSTOP) == 0);
  const auto exited = client.expect<wire::RankExited>();
  REQUIRE(exited);
  CHECK(exited->code == 0);
  CHECK(exited->not_finalized == 0);
  REQUIRE(client.wait_finished());
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit()->success());
  CHECK(remains(job) == "");
}

TEST_CASE(
    "ranks that end one by one do not extend the wait for a sortie-pmix that does not answer") {
  const SharedMemoryFolders folders(fresh_run_id());
  wire::JobSpec job = mpi_job("", folders.run_id, 1, 0);
  job.argv = {"/bin/sh", "-c", "sleep $((RANK + 1))"};
  constexpr std::uint32_t kRanks = 10;
  job.world_size = kRanks;
  job.nodes.front().ranks = kRanks;
  job.ranks.resize(kRanks, job.ranks.front());
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    job.ranks[rank].rank = job.ranks[rank].local_rank = rank;
    job.ranks[rank].env = {{"RANK", std::to_string(rank)}};
  }
  RunnerClient client;
  REQUIRE(client.start(job));
  const pid_t server = find_pmix(client.pid());
  REQUIRE(server > 0);
  REQUIRE(::kill(server, SIGSTOP) == 0);
  REQUIRE(client.expect<wire::RankExited>());
  client.send(wire::Stop{1000, "the first exit is reported"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited.at(0).stopped == 0);
  CHECK(client.exited.at(kRanks - 1).stopped == 1);
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit()->success());
}

TEST_CASE("MPI_Abort reaches the launcher with its status") {
  const SharedMemoryFolders folders(fresh_run_id());
  const wire::JobSpec job = mpi_job("abort", folders.run_id, 1, 0);
  RunnerClient client;
  REQUIRE(client.start(job));
  const auto abort = client.expect<wire::PmixAbort>();
  REQUIRE(abort);
  CHECK(abort->rank == 1);
  CHECK(abort->status == 7);
  REQUIRE(client.expect<wire::RankExited>());  // otherwise Stop would race with its exit
  client.send(wire::Stop{1000, "rank 1 called MPI_Abort"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited.at(1).code == 7);
  CHECK(client.exited.at(0).stopped == 1);
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit()->success());
  CHECK(remains(job) == "");
}

TEST_CASE("sortie-pmix killed: the launcher is told; runner killed: sortie-pmix dies with it") {
  const SharedMemoryFolders folders(fresh_run_id());
  const wire::JobSpec job = mpi_job("die", folders.run_id, 1, 0);
  RunnerClient client;
  REQUIRE(client.prepare(job));
  const pid_t pmix = find_pmix(client.pid());
  REQUIRE(pmix > 0);
  SUBCASE("sortie-pmix killed") {
    ::kill(pmix, SIGKILL);
    const auto error = client.expect<wire::RunnerError>();
    REQUIRE(error);
    CHECK(error->code == "runner");
    CHECK(error->message ==
          "sortie-pmix ended with signal 9 (SIGKILL); MPI ranks can not continue");
    client.send(wire::Stop{0, "test"});
    REQUIRE(client.wait_finished());
    client.send(wire::Goodbye{});
    CHECK(client.wait_exit()->success());
  }
  SUBCASE("runner killed") {
    client.signal(SIGKILL);
    REQUIRE(client.wait_exit());
    const auto deadline = steady_clock::now() + RunnerClient::kPatience;
    while (runner::process_state(pmix) != '?' && steady_clock::now() < deadline) ::usleep(10000);
    CHECK(runner::process_state(pmix) == '?');
  }
  CHECK(remains(job) == "");
}

TEST_CASE("what ranks share in memory goes with the run, however rank or runner end") {
  wire::JobSpec job = mpi_job("ring", fresh_run_id(), 1, 0);
  job.env.clear();
  const char* const kLeave =
      "echo shared > $OMPI_MCA_btl_vader_backing_directory/segment; "
      "test $OMPI_MCA_btl_vader_backing_directory = $OMPI_MCA_btl_sm_backing_directory || exit 3; "
      "echo up; ";
  const std::string folder = runner::shared_memory_folder(
      "/" + runner::run_folder_name(job.run_id, job.attempt, job.node_rank));
  RunnerClient client;
  SUBCASE("the rank is killed") {
    job.argv = {"sh", "-c", std::string(kLeave) + "kill -9 $$"};
    REQUIRE(client.start(job));
    REQUIRE(client.wait_finished());
    CHECK(client.exited.at(0).code == SIGKILL);
    client.send(wire::Goodbye{});
    CHECK(client.wait_exit()->success());
  }
  SUBCASE("the runner is killed") {
    job.argv = {"sh", "-c", std::string(kLeave) + "sleep 100"};
    REQUIRE(client.start(job));
    const auto deadline = steady_clock::now() + 2 * RunnerClient::kPatience;
    while (!std::filesystem::exists(folder + "/segment") && steady_clock::now() < deadline)
      ::usleep(10000);
    CHECK(std::filesystem::exists(folder + "/segment"));
    client.signal(SIGKILL);
    REQUIRE(client.wait_exit());
    while (std::filesystem::exists(folder) && steady_clock::now() < deadline) ::usleep(10000);
  }
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("no libpmix: auto goes on without and says why, required is an error") {
  const SharedMemoryFolders folders(fresh_run_id());
  wire::JobSpec job = mpi_job("ring", folders.run_id, 1, 0);
  job.argv = {"true"};
  job.env.push_back({"SORTIE_LIBPMIX", "/no/such/libpmix.so"});
  job.mpi = 1;
  {
    RunnerClient client;
    const auto ready = client.prepare(job);
    REQUIRE(ready);
    CHECK(ready->pmix.starts_with("none: libpmix not found: /no/such/libpmix.so"));
    client.send(wire::Start{});
    REQUIRE(client.wait_finished());
    CHECK(client.exited.at(0).code == 0);
    client.send(wire::Goodbye{});
    CHECK(client.wait_exit()->success());
  }
  job.mpi = 2;
  RunnerClient client;
  client.send(wire::Hello{});
  client.send(job);
  const auto error = client.expect<wire::RunnerError>();
  REQUIRE(error);
  CHECK(error->code == "unsupported");
  CHECK(error->message.find("libpmix2") != std::string::npos);
  CHECK(client.wait_exit()->code == 1);
  CHECK(remains(job) == "");
}
