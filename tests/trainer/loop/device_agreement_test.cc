// Tests of what ranks say when their devices differ. mixed_devices.py does this with processes.
#include "trainer/loop/device_agreement.h"

#include <doctest/doctest.h>

#include <mutex>

#include "tests/support/scoped_variable.h"
#include "trainer/loop/startup_check.h"
#include "trainer/loop/world.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

DeviceClaim h100(const std::string& host) {
  return {host, "NVIDIA H100 80GB HBM3 (9.0)", ""};
}

DeviceClaim without(const std::string& host, const std::string& why) {
  return {host, "cpu", "trainer.device = \"auto\": " + why};
}

}  // namespace

TEST_CASE("ranks with equal devices have nothing to say") {
  CHECK(device_difference({h100("h01"), h100("h02")}, true) == "");
  CHECK(device_difference({without("h01", "a"), without("h02", "b")}, true) == "");
}

TEST_CASE("a rank without a GPU is named with its host, the reason and what to do") {
  CHECK(device_difference({h100("h01"), h100("h01"), h100("h02"), without("h03", "it is broken")},
                          true) ==
        "start-up check: device differs: NVIDIA H100 80GB HBM3 (9.0) on ranks 0-2 (h[01-02]), cpu "
        "on rank 3 (h03); rank 3 (h03): no GPU: trainer.device = \"auto\": it is broken; repair "
        "that GPU, leave out h03 (--exclude 'h03'), or set trainer.device = \"cpu\" to train "
        "without GPUs");
  // Without the launcher there is no --exclude; a host with such ranks alone can not be left out.
  CHECK(device_difference({without("h01", "it is broken"), h100("h01")}, false)
            .ends_with("; repair that GPU, set the slots of the host to GPUs that work, or set "
                       "trainer.device = \"cpu\" to train without GPUs"));
  CHECK(device_difference({without("h01", "a"), h100("h02"), without("h03", "a")}, false)
            .ends_with("; ranks 0,2 (h[01,03]): no GPU: trainer.device = \"auto\": a; repair those "
                       "GPUs, leave out h[01,03], or set trainer.device = \"cpu\" to train without "
                       "GPUs"));
}

TEST_CASE("many reasons are cut to three") {
  const std::string text =
      device_difference({h100("h01"), without("h02", "a"), without("h03", "b"), without("h04", "c"),
                         without("h05", "d"), without("h06", "e")},
                        true);
  CHECK(text.find("rank 3 (h04): no GPU: trainer.device = \"auto\": c; 2 more reasons are in the "
                  "ranks' output; repair those GPUs, leave out h[02-06] (--exclude 'h[02-06]')") !=
        std::string::npos);
}

TEST_CASE("GPUs of different models are an error that names the fewer ones") {
  CHECK(device_difference({h100("h01"), {"h02", "NVIDIA H200 (9.0)", ""}, h100("h03")}, true) ==
        "start-up check: device differs: NVIDIA H100 80GB HBM3 (9.0) on ranks 0,2 (h[01,03]), "
        "NVIDIA H200 (9.0) on rank 1 (h02); results of different GPUs differ in their last bits, "
        "and replicas with them; leave out h02 (--exclude 'h02'), or use hosts of one kind");
  CHECK(device_difference({h100("h01"), {"h01", "NVIDIA H200 (9.0)", ""}}, true)
            .ends_with("; use GPUs of one model"));
}

TEST_CASE("connected ranks all return the same difference") {
  std::mutex mutex;
  std::vector<std::string> differing, equal;
  run_thread_ranks(3, [&](Communicator& communicator) {
    RankContext rank;
    rank.rank = communicator.rank();
    rank.world_size = communicator.size();
    rank.host = "h0" + std::to_string(rank.rank);
    rank.compute.why_cpu = "it is \xff broken";  // a text of a driver that is not UTF-8
    const auto same = compare_devices(communicator, rank);
    if (rank.rank != 1) rank.compute.gpu = GpuFacts{.name = "GPU", .compute_capability = 90};
    const auto other = compare_devices(communicator, rank);
    const std::lock_guard lock(mutex);
    equal.push_back(same.value());
    differing.push_back(other.value());
  });
  CHECK(equal == std::vector<std::string>(3, ""));
  REQUIRE(differing.size() == 3);
  CHECK(differing[0].starts_with("start-up check: device differs: GPU (9.0) on ranks 0,2"));
  CHECK(differing == std::vector<std::string>(3, differing[0]));
}

TEST_CASE("the start-up check shows hashes by their first digits, and names in full") {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_thread_ranks(2, [&](Communicator& communicator) {
    RankContext rank;
    rank.host = "h0" + std::to_string(communicator.rank());
    const bool first = communicator.rank() == 0;
    const auto checked = check_agreement(
        communicator, rank,
        {{"build", std::string(64, first ? 'a' : 'b'), "copy it"},
         {"device", first ? "NVIDIA A100-SXM4-40GB (8.0)" : "NVIDIA A100-SXM4-80GB (8.0)", "x"}});
    const std::lock_guard lock(mutex);
    errors.push_back(checked ? "none" : checked.error().message);
  });
  CHECK(errors ==
        std::vector<std::string>(
            2,
            "start-up check: build differs: aaaaaaaaaaaa on h00, bbbbbbbbbbbb on h01; copy it\n"
            "start-up check: device differs: NVIDIA A100-SXM4-40GB (8.0) on h00, NVIDIA "
            "A100-SXM4-80GB (8.0) on h01; x"));
}

TEST_CASE("the limit of the ranks' meeting is a number of seconds") {
  {
    const sortie::test::ScopedVariable limit("SORTIE_COMM_TIMEOUT", "2.5");
    CHECK(meeting_limit().value() == std::chrono::milliseconds(2500));
  }
  {
    const sortie::test::ScopedVariable limit("SORTIE_COMM_TIMEOUT", "0");
    CHECK(meeting_limit().value() > std::chrono::hours(24));
  }
  for (const char* wrong :
       {"soon", "30m", "-1", "nan", "inf", "31536001", "99999999999999999999"}) {
    CAPTURE(wrong);
    const sortie::test::ScopedVariable limit("SORTIE_COMM_TIMEOUT", wrong);
    const auto found = meeting_limit();
    REQUIRE_FALSE(found);
    CHECK(found.error().code == ErrorCode::config);
    // Every verb that runs as a rank reads the environment first.
    const auto context = rank_context_from_environment();
    REQUIRE_FALSE(context);
    CHECK(context.error().message == found.error().message);
  }
  const sortie::test::ScopedVariable limit("SORTIE_COMM_TIMEOUT", "31536000");
  CHECK(meeting_limit().value() == std::chrono::hours(24 * 365));
}
