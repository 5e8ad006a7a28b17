// Tests of what a rank says when a GPU can not be used, or has no memory left. The emulated GPU's
// driver and other processes: tests/support/cuda/surroundings.h.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <cstdlib>
#include <string>

#include "tests/support/emulated.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/tiny_training.h"
#include "trainer/loop/compute_device.h"
#include "trainer/loop/device_room.h"
#include "trainer/loop/rank_end.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// GPU number `gpu` of the 16 emulated ones. Cases that fail to start one have one of their own.
DevicePlace place_of(int gpu) {
  return {.local_rank = gpu, .local_ranks = 16, .visible = {}};
}

/// The error of a start on that GPU with trainer.device = "cuda". With "auto" the rank must go to
/// the CPU for the same reason.
std::string refusal(int gpu) {
  const auto automatic = choose_device("auto", place_of(gpu), "trainer.device");
  REQUIRE(automatic.has_value());
  CHECK_FALSE(automatic->gpu.has_value());
  const auto wanted = choose_device("cuda", place_of(gpu), "trainer.device");
  REQUIRE_FALSE(wanted.has_value());
  CHECK(wanted.error().code == ErrorCode::unsupported);
  const std::string cuda = "trainer.device = \"cuda\": ";
  REQUIRE(wanted.error().message.starts_with(cuda));
  const std::string reason = wanted.error().message.substr(cuda.size());
  CHECK(automatic->why_cpu == "trainer.device = \"auto\": " + reason);
  return reason;
}

}  // namespace

TEST_CASE("on a GPU: a start without a driver, or with an old one, names the versions" *
          doctest::skip(!gpu_is_emulated())) {
  {
    const sortie::test::ScopedVariable driver("SORTIE_EMULATED_DRIVER", "0");
    CHECK(refusal(0) == "no NVIDIA driver is loaded; install one, or use \"cpu\"");
  }
  const sortie::test::ScopedVariable driver("SORTIE_EMULATED_DRIVER", "12020");
  CHECK(refusal(0) ==
        "the NVIDIA driver supports CUDA 12.2, this build needs 13.0; install a newer driver");
}

TEST_CASE("on a GPU: a start that sees no GPU says where to look" *
          doctest::skip(!gpu_is_emulated())) {
  const sortie::test::ScopedVariable none("SORTIE_EMULATED_GPUS", "0");
  CHECK(refusal(0) ==
        "this process sees no GPU; look at nvidia-smi, CUDA_VISIBLE_DEVICES and the slots of the "
        "host");
}

TEST_CASE("on a GPU: one that another process has for itself, or has filled, is named" *
          doctest::skip(!gpu_is_emulated())) {
  constexpr const char* kAdvice =
      "; look at nvidia-smi: another process may have it for itself, all of its memory may be in "
      "use, or it is broken";
  {
    const sortie::test::ScopedVariable taken("SORTIE_EMULATED_GPUS_TAKEN", "3,7");
    CHECK(refusal(7) ==
          std::string("GPU 7 can not be used: CUDA-capable device(s) is/are busy or unavailable "
                      "(cudaErrorDevicesUnavailable)") +
              kAdvice);
    CHECK(choose_device("cuda", place_of(15), "trainer.device").has_value());  // it is free
  }
  CHECK(choose_device("cuda", place_of(7), "trainer.device").has_value());
  const sortie::test::ScopedVariable used("SORTIE_EMULATED_GPU_USED",
                                          std::to_string(std::uint64_t{1} << 36));
  CHECK(refusal(8) ==
        std::string("GPU 8 can not be used: out of memory (cudaErrorMemoryAllocation)") + kAdvice);
}

TEST_CASE("on a GPU: memory that another process has is missing at the start" *
          doctest::skip(!gpu_is_emulated())) {
  const PlanOptions options{.micro_batch_size = 2, .gpu = true};
  const auto room = [&] {
    const auto compute = choose_device("cuda", place_of(9), "trainer.device");
    REQUIRE(compute.has_value());
    const auto checked = check_device_room(tiny_job(), options, *compute);
    return checked ? "" : checked.error().message;
  };
  CHECK(room() == "");
  // All but 4 MiB of the 64 GiB.
  const sortie::test::ScopedVariable used("SORTIE_EMULATED_GPU_USED",
                                          std::to_string((std::uint64_t{1} << 36) - (4u << 20)));
  const std::string refused = room();
  CAPTURE(refused);
  CHECK(refused.starts_with("GPU 9 (emulated GPU (9.0)): weights, gradients and "));
  CHECK(refused.find("and 4.19MB of its 68.7GB are free; see nvidia-smi for other processes, "
                     "lower topology.micro_batch_size") != std::string::npos);
}

TEST_CASE("on a GPU: a step that runs out of memory shows what other processes have" *
          doctest::skip(!gpu_is_emulated())) {
  config::JobConfig job = tiny_job();
  job.model.sequence_length = 256;
  job.topology.micro_batch_size = 8;
  const auto communicator = make_single_communicator();
  RankContext rank;
  rank.timed_products = 1;  // nothing is computed, and no memory is kept, before the first step
  TinyTraining training(job, *communicator, DType::f32, 1, nullptr, rank);
  RankEnd end;
  end.set_planned_on_gpu(std::int64_t{900} << 20);
  const std::size_t total = std::size_t{1} << 36;
  const std::size_t free = cuda_module().open(device()).value();
  // Another process takes what is free, but 2 MiB.
  const std::size_t others = free - (2u << 20);
  const sortie::test::ScopedVariable used("SORTIE_EMULATED_GPU_USED", std::to_string(others));
  const Result<> outcome = end.guard([&]() -> Result<> {
    training.losses(1);
    return {};
  });
  REQUIRE_FALSE(outcome.has_value());
  CHECK(outcome.error().code == ErrorCode::unsupported);
  const std::string& message = outcome.error().message;
  CAPTURE(message);
  CHECK(message.starts_with("out of memory: GPU 0 gave no "));
  CHECK(message.find(fmt::format(" MiB more: of its {} MiB tensors have ", total >> 20)) !=
        message.npos);
  const std::string have = "CUDA and other processes (see nvidia-smi) have ";
  const std::size_t at = message.find(have);
  REQUIRE(at != message.npos);
  const std::int64_t shown = std::stoll(message.substr(at + have.size()));
  CHECK(std::abs(shown - static_cast<std::int64_t>(others >> 20)) <= 64);
  CHECK(message.find(" MiB are free (planned: 900 MiB in all, see `sortie-train plan`); lower "
                     "topology.micro_batch_size, set topology.activation_checkpointing_type = "
                     "\"every_layer\", share weights and the optimizer's state out with "
                     "topology.parameter_sharding, or use more ranks for each model") !=
        message.npos);
}
