// Ranks as threads that are connected by sockets, each with a separate emulated GPU if there is a
// device module.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "trainer/ops/copy.h"
#include "trainer/parallel/device_communicator.h"
#include "trainer/parallel/sockets.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer::test {

/// Messages of what each rank's body threw, by rank; empty if it threw nothing.
using RankErrors = std::vector<std::string>;

inline RankErrors run_socket_ranks(int size,
                                   const std::function<void(std::unique_ptr<Communicator>)>& body) {
  MeetingPlace place{"127.0.0.1", 0, "open sesame"};
  Result<Fd> listener = listen_for_ranks(place.port);
  REQUIRE(listener);
  RankErrors errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        std::string& error = errors[static_cast<std::size_t>(rank)];
        try {
          auto world = make_socket_communicator(
              rank, size, place, rank == 0 ? std::move(*listener) : Fd(), std::chrono::seconds(60));
          if (world)
            body(std::move(*world));
          else
            error = world.error().message;
        } catch (const std::exception& problem) {
          error = problem.what();
        }
      });
  }
  return errors;
}

/// Calls `body` on each rank with a communicator of GPUs and the context of the rank's GPU.
/// `place`: what each rank knows of the run.
inline RankErrors run_gpu_ranks(
    int size, const std::function<void(Communicator&, ExecutionContext&)>& body,
    const std::function<RunPlace(int rank)>& place = [](int) { return RunPlace{}; }) {
  ::setenv("SORTIE_CUDA_MODULE", SORTIE_EMULATED_MODULE, 0);
  REQUIRE(load_cuda_module());
  return run_socket_ranks(size, [&](std::unique_ptr<Communicator> host) {
    const Device gpu{.kind = DeviceKind::cuda, .index = host->rank()};
    ExecutionContext context(1, gpu);
    RunPlace knows = place(host->rank());
    auto world =
        make_device_communicator(std::move(host), cuda_module().groups(), gpu, std::move(knows));
    if (!world) throw CommunicatorError(world.error().message);
    body(**world, context);
  });
}

inline bool all_empty(const RankErrors& errors) {
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(error.empty());
  }
  return std::ranges::all_of(errors, &std::string::empty);
}

}  // namespace sortie::trainer::test
