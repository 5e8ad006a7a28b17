// Tests of which device a rank gets, and of the errors if there is none.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/scoped_variable.h"
#include "tests/support/tiny_training.h"
#include "trainer/loop/compute_device.h"
#include "trainer/loop/device_room.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a process without a GPU does not carry CUDA's libraries") {
  const auto chosen = choose_device("auto", {}, "trainer.device");
  REQUIRE(chosen);
  std::ifstream maps("/proc/self/maps");
  const std::string mapped((std::istreambuf_iterator<char>(maps)), {});
  CHECK(mapped.find("libc.so") != mapped.npos);
  CHECK((chosen->gpu.has_value() || mapped.find("libcublasLt") == mapped.npos));
}

TEST_CASE("a rank has the GPU that the runner shows it, or its own of all") {
  // The runner makes one GPU visible to each rank.
  CHECK(gpu_of_place({.local_rank = 5, .local_ranks = 8, .visible = "3"}, 1).value() == 0);
  CHECK(gpu_of_place({.local_rank = 0, .local_ranks = 2, .visible = "GPU-4f2a"}, 1).value() == 0);
  // Another launcher makes all GPUs visible to all ranks.
  CHECK(gpu_of_place({.local_rank = 5, .local_ranks = 8, .visible = {}}, 8).value() == 5);
  CHECK(gpu_of_place({.local_rank = 1, .local_ranks = 2, .visible = "0,1,2,3"}, 4).value() == 1);
  // Without a launcher.
  CHECK(gpu_of_place({}, 4).value() == 0);
}

TEST_CASE("fewer GPUs than ranks are an error that counts both") {
  for (const auto& [visible, gpus] : {std::pair(std::optional<std::string>(), 1),
                                      std::pair(std::optional<std::string>("0,1"), 2)}) {
    const auto none = gpu_of_place({.local_rank = 0, .local_ranks = 4, .visible = visible}, gpus);
    REQUIRE_FALSE(none);
    CHECK(none.error().code == ErrorCode::unsupported);
    CHECK(has(none.error().message, gpus == 1 ? "1 GPU for 4 ranks" : "2 GPUs for 4 ranks"));
    CHECK(has(none.error().message, "CUDA_VISIBLE_DEVICES"));
  }
  // A launcher that does not say how many local ranks there are.
  CHECK_FALSE(gpu_of_place({.local_rank = 2, .local_ranks = 1, .visible = {}}, 2));
}

TEST_CASE("bf16 is what a GPU multiplies") {
  const CpuFacts narrow{.model = "CPU", .isa = "avx2", .multiplies_bf16 = false, .amx = false};
  const GpuFacts gpu{.name = "GPU", .compute_capability = 80};
  CHECK(choose_precision("auto", narrow).value() == DType::f32);
  CHECK(choose_precision("auto", narrow, gpu).value() == DType::bf16);
  CHECK(choose_precision("bf16", narrow, gpu).value() == DType::bf16);
  CHECK(choose_precision("f32", narrow, gpu).value() == DType::f32);
  CHECK_FALSE(choose_precision("bf16", narrow));
}

TEST_CASE("FP8 is bf16 beside linear layers, on GPUs that have such products alone") {
  const CpuFacts cpu{.model = "CPU", .isa = "avx2", .multiplies_bf16 = true, .amx = false};
  for (const int newer : {89, 90, 120})
    CHECK(choose_precision("fp8", cpu, GpuFacts{.name = "GPU", .compute_capability = newer})
              .value() == DType::bf16);
  const auto old = choose_precision("fp8", cpu, GpuFacts{.name = "A100", .compute_capability = 80});
  REQUIRE_FALSE(old);
  CHECK(old.error().code == ErrorCode::unsupported);
  CHECK(
      old.error().message ==
      "model.precision = \"fp8\": A100 has compute capability 8.0, and products in FP8 need a GPU "
      "of compute capability 8.9 or newer; train on such GPUs, or use \"bf16\"");
  const auto none = choose_precision("fp8", cpu);
  REQUIRE_FALSE(none);
  CHECK(none.error().message ==
        "model.precision = \"fp8\": this rank computes on a CPU (CPU), and products in FP8 need a "
        "GPU of compute capability 8.9 or newer; set trainer.device = \"cuda\" on hosts that have "
        "one, or use \"bf16\"");
  config::ModelConfig model;
  CHECK(name_of_precision(model, DType::bf16) == "bf16");
  model.precision = "fp8";
  CHECK(name_of_precision(model, DType::bf16) == "fp8");
}

TEST_CASE("what does not fit on a GPU is an error before memory is taken") {
  const config::JobConfig job = trainer::test::tiny_job();
  const PlanOptions options{.micro_batch_size = 2, .gpu = true};
  ComputeDevice gpu{
      .device = {.kind = DeviceKind::cuda},
      .gpu = GpuFacts{.name = "GPU", .compute_capability = 90, .memory_bytes = 8 << 20},
      .free_bytes = 1 << 10,
      .libraries = {}};
  const auto error = [&] {
    const auto checked = check_device_room(job, options, gpu);
    return checked ? "none" : checked.error().message;
  };
  CHECK(has(error(),
            "GPU 0 (GPU (9.0)): weights, gradients and the optimizer's state of this rank "
            "take "));
  CHECK(has(error(), "and 1.02kB of its 8.39MB are free"));
  gpu.free_bytes = 4 << 20;  // the state fits, cuBLASLt's workspace does not
  CHECK(has(error(), "and activations 33."));
  CHECK(has(error(), "lower topology.micro_batch_size"));
  gpu.free_bytes = 64 << 20;
  const auto fits = check_device_room(job, options, gpu);
  REQUIRE(fits);
  CHECK(*fits > 33 << 20);
  CHECK(check_device_room(job, {.micro_batch_size = 2}, {}).value() == 0);
}

TEST_CASE("without a GPU auto is the CPU and cuda an error with its cause" *
          doctest::skip(!trainer::test::no_gpu_is_tested())) {
  const sortie::test::ScopedVariable missing("SORTIE_CUDA_MODULE", "/nowhere/libsortie-cuda.so");
  CHECK_FALSE(choose_device("auto", {}, "trainer.device").value().gpu);
  CHECK(choose_device("auto", {}, "trainer.device").value().name() == "cpu");
  const auto wanted = choose_device("cuda", {}, "trainer.device");
  REQUIRE_FALSE(wanted);
  CHECK(wanted.error().code == ErrorCode::unsupported);
  CHECK(has(wanted.error().message, "trainer.device = \"cuda\": /nowhere/libsortie-cuda.so: "));
}

TEST_CASE("on a GPU: auto and cuda choose it, cpu does not" *
          doctest::skip(trainer::test::no_gpu_is_tested())) {
  const int gpus = static_cast<int>(load_cuda_module().value()->gpus().value().size());
  for (const char* wanted : {"auto", "cuda"}) {
    CAPTURE(wanted);
    const auto chosen = choose_device(
        wanted, {.local_rank = gpus - 1, .local_ranks = gpus, .visible = {}}, "--device");
    REQUIRE(chosen);
    CHECK(chosen->device == Device{.kind = DeviceKind::cuda, .index = gpus - 1});
    REQUIRE(chosen->gpu);
    CHECK(has(chosen->name(), chosen->gpu->name + " ("));
    CHECK(chosen->free_bytes > 0);
    CHECK(chosen->free_bytes <= chosen->gpu->memory_bytes);
    CHECK(has(chosen->libraries, "CUDA "));
  }
  CHECK(choose_device("cpu", {}, "--device").value().name() == "cpu");
}
