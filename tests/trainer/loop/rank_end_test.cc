// Tests of how a rank exits after a failure. failing_rank.py does this with real MPI ranks.
#include "trainer/loop/rank_end.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <system_error>
#include <thread>

#include "common/base/atomic_file.h"
#include "tests/support/temp_dir.h"
#include "trainer/tensor/allocator.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

/// The communicator of a job of two ranks, the other of which never arrives.
class Waiting : public Communicator {
 public:
  int rank() const override { return 1; }
  int size() const override { return 2; }
  const std::string& name() const override { return name_; }
  std::string library() const override { return "none"; }
  Handle all_reduce_async(const Tensor&, ReduceOp, const Event&) override { return {}; }
  Handle reduce_scatter_async(const Tensor&, const Tensor&, ReduceOp, const Event&) override {
    return {};
  }
  Handle all_gather_async(const Tensor&, const Tensor&, const Event&) override { return {}; }
  Handle broadcast_async(const Tensor&, int, const Event&) override { return {}; }
  Handle all_to_all_async(const Tensor&, std::span<const std::int64_t>, const Tensor&,
                          std::span<const std::int64_t>, const Event&) override {
    return {};
  }
  Handle send_async(const Tensor&, int, const Event&) override { return {}; }
  Handle receive_async(const Tensor&, int, const Event&) override { return {}; }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int, int, std::string) override { return {}; }
  std::vector<std::string> all_gather(std::string_view) override { return {}; }
  bool meet(std::chrono::milliseconds) override { return false; }
  void abort(int exit_code) override { std::_Exit(100 + exit_code); }

 private:
  std::string name_ = "world";
};

/// The other rank ends at the same time.
class EndsToo final : public Waiting {
 public:
  bool meet(std::chrono::milliseconds) override { return true; }
};

/// The other rank ends later, as on a busy machine.
class EndsLater final : public Waiting {
 public:
  bool meet(std::chrono::milliseconds limit) override { return limit >= std::chrono::seconds(10); }
};

struct Ended {
  int code = -1;
  std::string err;
};
/// Runs `body` in a child process for up to a minute. Returns its exit code and stderr.
template <class Body>
Ended end_of(const Body& body, int number = 1) {
  const sortie::test::ScopedTempDir dir;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);
    const int err = ::open(dir.str("err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(err, STDERR_FILENO);
    RankEnd end;
    RankContext rank;
    rank.rank = number;
    rank.world_size = 2;
    rank.host = "h02";
    end.set_rank(rank);
    end.set_communicator(std::make_unique<Waiting>());
    std::_Exit(body(end));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  Ended ended;
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  const auto err = read_file(dir.str("err"), 1u << 20);
  REQUIRE(err.has_value());
  ended.err = *err;
  return ended;
}

}  // namespace

TEST_CASE("a rank that fails alone ends the job, whatever kind of failure it is") {
  const Ended error = end_of([](RankEnd& end) {
    return end.exit_code_of([] { return fail(ErrorCode::data, "token 7 is bad"); });
  });
  CHECK(error.code == 109);
  CHECK(error.err == "sortie-train: rank 1 on h02: token 7 is bad\n");

  const Ended memory = end_of(
      [](RankEnd& end) { return end.exit_code_of([]() -> Result<> { throw std::bad_alloc(); }); });
  CHECK(memory.code == 103);
  CHECK(memory.err.starts_with("sortie-train: rank 1 on h02: out of memory: "));

  const Ended thread = end_of([](RankEnd& end) {
    return end.exit_code_of([]() -> Result<> {
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    });
  });
  CHECK(thread.code == 103);
  CHECK(thread.err.starts_with("sortie-train: rank 1 on h02: a thread could not be started: "));
  CHECK(thread.err.find("report it") == std::string::npos);

  const Ended gpu = end_of([](RankEnd& end) {
    end.set_planned_on_gpu(std::int64_t{900} << 20);
    return end.exit_code_of([]() -> Result<> {
      // A GPU that no machine has, so that no driver says what else is in its memory.
      throw OutOfMemory({.kind = DeviceKind::cuda, .index = 99}, 64u << 20, 512u << 20, 600u << 20);
    });
  });
  CHECK(gpu.code == 103);
  CHECK(gpu.err ==
        "sortie-train: rank 1 on h02: out of memory: GPU 99 gave no 64 MiB more: tensors have 512 "
        "MiB of it, and 88 MiB wait to be used again (planned: 900 MiB in all, see `sortie-train "
        "plan`); lower topology.micro_batch_size, set topology.activation_checkpointing_type = "
        "\"every_layer\", share weights and the optimizer's state out with "
        "topology.parameter_sharding, or use more ranks for each model\n");

  const Ended lost = end_of([](RankEnd& end) {
    return end.exit_code_of([]() -> Result<> { throw CommunicatorError("rank 0 is gone"); });
  });
  CHECK(lost.code == 105);
  CHECK(lost.err ==
        "sortie-train: rank 1 on h02: communication between ranks broke: rank 0 is gone\n");
}

TEST_CASE("an error that all ranks know is reported by rank 0 alone, which ends first") {
  const auto fails = [](RankEnd& end) {
    end.set_communicator(std::make_unique<EndsToo>());
    return end.exit_code_of(
        [&] { return end.shared(fail(ErrorCode::data, "token files differ")); });
  };
  const Ended first = end_of(fails, 0);
  CHECK(first.code == 9);
  CHECK(first.err == "sortie-train: rank 0 on h02: token files differ\n");
  const auto begin = std::chrono::steady_clock::now();
  const Ended other = end_of(fails, 1);
  CHECK(other.code == 9);
  CHECK(other.err == "");
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(100));
  // A rank that reports nothing itself waits for rank 0.
  const Ended patient = end_of([](RankEnd& end) {
    end.set_communicator(std::make_unique<EndsLater>());
    return end.exit_code_of([&] { return end.shared(fail(ErrorCode::data, "files differ")); });
  });
  CHECK(patient.code == 9);
  CHECK(patient.err == "");
  // A failure after a shared check has passed is the rank's own.
  const Ended own = end_of([](RankEnd& end) {
    return end.exit_code_of([&]() -> Result<> {
      SORTIE_TRY(end.shared({}));
      return fail(ErrorCode::data, "token 7 is bad");
    });
  });
  CHECK(own.err == "sortie-train: rank 1 on h02: token 7 is bad\n");
}

TEST_CASE("an exception of a compute thread, which nobody can catch, ends the job as well") {
  const Ended ended = end_of([](RankEnd&) {
    std::thread([] { throw std::bad_alloc(); }).join();
    return 0;
  });
  CHECK(ended.code == 103);
  CHECK(ended.err.starts_with("sortie-train: rank 1 on h02: out of memory: "));
}

TEST_CASE("an exception in a job of one rank is an error that comes back") {
  RankEnd end;
  const Result<> outcome = end.guard([]() -> Result<> { throw std::runtime_error("odd"); });
  REQUIRE_FALSE(outcome.has_value());
  CHECK(outcome.error().code == ErrorCode::internal);
  CHECK(outcome.error().message == "unexpected exception: odd; please report it with this message");
}
