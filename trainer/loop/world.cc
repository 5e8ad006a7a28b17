#include "trainer/loop/world.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "common/base/environment.h"
#include "common/base/host_name.h"
#include "trainer/loop/launcher_inquiry.h"
#include "trainer/metrics/launcher_store.h"
#include "trainer/parallel/device_communicator.h"
#include "trainer/parallel/engine.h"
#include "trainer/parallel/sockets.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer {
namespace {

constexpr const char* kWorldKey = "world";

std::string new_secret() {
  std::random_device random;
  std::string secret;
  for (int i = 0; i < 4; ++i) secret += fmt::format("{:08x}", random());
  return secret;
}

/// "10.0.0.1 40123 SECRET"
std::string text_of(const MeetingPlace& place) {
  return fmt::format("{} {} {}", place.host, place.port, place.secret);
}

Result<MeetingPlace> parse_place(const std::string& text) {
  MeetingPlace place;
  const std::size_t first = text.find(' '), second = text.find(' ', first + 1);
  if (second != std::string::npos) {
    const char* end = text.data() + second;
    const auto [read_to, error] = std::from_chars(text.data() + first + 1, end, place.port);
    place.host = text.substr(0, first);
    place.secret = text.substr(second + 1);
    if (error == std::errc() && read_to == end) return place;
  }
  return fail(ErrorCode::protocol,
              fmt::format("address of rank 0 \"{}\": expected an address and a port", text));
}

/// Rank 0 listens on any free port, which the others learn from the launcher.
Result<MeetingPlace> place_by_launcher(const RankContext& rank, Fd& listener,
                                       std::chrono::milliseconds limit) {
  SORTIE_ASSIGN_OR_RETURN(LauncherStore store, LauncherStore::open(rank.socket_path));
  if (rank.rank != 0) {
    SORTIE_ASSIGN_OR_RETURN(
        const std::string text,
        store.get(kWorldKey, limit,
                  "the launcher has not sent the address of rank 0: see what happened to rank 0"));
    return parse_place(text);
  }
  MeetingPlace place{environment_variable("MASTER_ADDR"), 0, new_secret()};
  if (place.host.empty()) place.host = host_name();  // an address, unlike rank.host
  SORTIE_ASSIGN_OR_RETURN(listener, listen_for_ranks(place.port));
  SORTIE_TRY(store.put(kWorldKey, text_of(place), limit));
  return place;
}

Result<MeetingPlace> place_by_environment(const RankContext& rank, Fd& listener) {
  auto place = parse_place(environment_variable("MASTER_ADDR") + " " +
                           environment_variable("MASTER_PORT") + " ");
  if (!place || place->host.empty() || place->port == 0)
    return fail(
        ErrorCode::config,
        fmt::format("environment: MASTER_ADDR='{}' MASTER_PORT='{}': the address and a free "
                    "port of rank 0 are expected; `sortie run` needs neither",
                    environment_variable("MASTER_ADDR"), environment_variable("MASTER_PORT")));
  if (rank.rank == 0) {
    SORTIE_ASSIGN_OR_RETURN(listener, listen_for_ranks(place->port));
  }
  return place;
}

/// Connects all ranks over TCP.
Result<std::unique_ptr<Communicator>> make_tcp_world(const RankContext& rank) {
  SORTIE_ASSIGN_OR_RETURN(const std::chrono::milliseconds limit, meeting_limit());
  Fd listener;
  SORTIE_ASSIGN_OR_RETURN(const MeetingPlace place, rank.socket_path.empty()
                                                        ? place_by_environment(rank, listener)
                                                        : place_by_launcher(rank, listener, limit));
  return make_socket_communicator(rank.rank, rank.world_size, place, std::move(listener), limit);
}

RunPlace place_of(const RankContext& rank) {
  RunPlace place{.host = rank.host,
                 .position = [marks = rank.marks] { return position_text(marks->look()); }};
  if (!rank.socket_path.empty())
    place.inquiry = std::make_shared<LauncherInquiry>(rank.socket_path, rank.rank, rank.world_size);
  return place;
}

/// Whether Open MPI's mpirun has started this process as a rank of this job.
bool started_by_mpirun(const RankContext& rank) {
  return environment_variable("OMPI_COMM_WORLD_SIZE") == std::to_string(rank.world_size);
}

}  // namespace

Result<std::chrono::milliseconds> meeting_limit() {
  constexpr std::chrono::hours kNoLimit{24 * 365};
  SORTIE_ASSIGN_OR_RETURN(const std::chrono::duration<double> limit, read_communication_limit());
  return limit.count() > 0 ? std::chrono::duration_cast<std::chrono::milliseconds>(limit)
                           : std::chrono::milliseconds(kNoLimit);
}

Result<std::unique_ptr<Communicator>> meet_before_world(const std::string& wanted,
                                                        const RankContext& rank) {
  if (wanted != "auto" || rank.world_size == 1 || !rank.socket_path.empty()) return nullptr;
  if (started_by_mpirun(rank)) return make_mpi_communicator(rank.rank, rank.world_size);
  // Another launcher of MPI programs, as srun: ranks without GPUs need no MASTER_ADDR.
  if (!environment_variable("PMIX_RANK").empty()) return nullptr;
  if (environment_variable("MASTER_ADDR").empty() || environment_variable("MASTER_PORT").empty())
    return nullptr;
  return make_tcp_world(rank);
}

Result<std::unique_ptr<Communicator>> make_world(const std::string& backend,
                                                 const RankContext& rank,
                                                 std::unique_ptr<Communicator> met) {
  const bool gpu = rank.compute.device.kind == DeviceKind::cuda;
  if (backend == "nccl" && !gpu)
    return fail(ErrorCode::config,
                fmt::format("topology.backend: nccl is for ranks with a GPU each, and this one "
                            "computes on the CPU ({}); set trainer.device = \"cuda\", or "
                            "topology.backend = \"mpi\"",
                            rank.compute.why_cpu));
  if (rank.world_size == 1) return make_single_communicator();
  const bool met_by_mpi = met != nullptr && started_by_mpirun(rank);
  if (backend == "nccl" || (backend == "auto" && gpu)) {
    if (met_by_mpi) met.reset();  // ends MPI
    if (met == nullptr) {
      SORTIE_ASSIGN_OR_RETURN(met, make_tcp_world(rank));
    }
    return make_device_communicator(std::move(met), cuda_module().groups(), rank.compute.device,
                                    place_of(rank));
  }
  if (met_by_mpi) return met;
  met.reset();
  return make_mpi_communicator(rank.rank, rank.world_size);
}

}  // namespace sortie::trainer
