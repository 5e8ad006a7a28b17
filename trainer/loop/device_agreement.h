// Ranks agree on their devices before they open a world: ranks with GPUs open another one than
// ranks without, and would wait for each other.
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/loop/rank_context.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// The device of a rank, as it tells the others.
struct DeviceClaim {
  std::string host;     // RankContext::host
  std::string device;   // ComputeDevice::name(): "cpu", or the GPU's model
  std::string why_cpu;  // ComputeDevice::why_cpu
};

/// Returns the error of ranks whose devices differ: the ranks and hosts of each device, why ranks
/// have no GPU, and what to do; empty if all have the same. `launched`: by `sortie run`, whose
/// options the advice names.
std::string device_difference(const std::vector<DeviceClaim>& by_rank, bool launched);

/// Compares the devices of all ranks. Returns the same text on every rank: device_difference().
/// Ranks compare through the launcher's store if there is one, else through `meeting`, the result
/// of meet_before_world(); if that is a group of one, nothing is compared. Blocks until all ranks
/// have chosen a device. ErrorCode::timeout on rank 0 names ranks that have not within
/// SORTIE_COMM_TIMEOUT. Collective.
Result<std::string> compare_devices(Communicator& meeting, const RankContext& rank);

}  // namespace sortie::trainer
