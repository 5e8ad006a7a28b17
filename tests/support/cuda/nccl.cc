// NCCL's API between emulated GPUs: communicators that send requests to the hub.
#include <nccl.h>

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "tests/support/cuda/nccl_comm.h"

using namespace emulated_cuda;

namespace {

thread_local int grouping = 0;
thread_local std::map<cudaStream_t, std::shared_ptr<Calls>> grouped;
thread_local std::vector<ncclComm_t> ending;
thread_local ncclResult_t failed_call = ncclSuccess;

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, Piece piece) {
  {
    const Inside inside(comm);
    const ncclResult_t state = state_of(comm);
    if (state != ncclSuccess)
      return failed_call = state == ncclInProgress ? ncclInvalidArgument : state;
    piece.head.group = comm->group;
    const bool message = piece.head.what == Ask::send || piece.head.what == Ask::received;
    if (!message) piece.head.sequence = comm->sequence++;
    auto& work = grouped[stream];
    if (!work) work = std::make_shared<Calls>(Calls{comm->world, comm->life, comm, {}, {}, false});
    work->pieces.push_back(piece);
  }
  return grouping > 0 ? ncclSuccess : (++grouping, ncclGroupEnd());
}

Piece collective(Ask what, const void* from, std::size_t from_count, void* to, std::size_t to_count,
                 ncclDataType_t type) {
  Piece piece;
  piece.head.what = what;
  piece.head.type = type;
  piece.head.count = static_cast<std::int64_t>(from_count);
  piece.from = from;
  piece.from_bytes = from_count * size_of(type);
  piece.to = to;
  piece.to_bytes = to_count * size_of(type);
  return piece;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  const char* text = std::getenv("SORTIE_EMULATED_NCCL_VERSION");
  return *version = text != nullptr ? std::atoi(text) : 22809, ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case ncclInvalidUsage:
      return "invalid usage";
    default:
      return "unhandled system error";
  }
}
const char* ncclGetLastError(ncclComm_t comm) {
  return comm != nullptr ? comm->world->problem() : "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const char* host = std::getenv("MASTER_ADDR");
  const std::string text =
      fmt::format("{} {}", start_hub(), host != nullptr && *host != '\0' ? host : "127.0.0.1");
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, text.data(), std::min(text.size(), sizeof id->internal - 1));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  SORTIE_CHECK(config->blocking == 0, "the emulation is for communicators that do not block");
  const std::string text = id.internal;
  const std::size_t space = text.find(' ');
  auto* made = enlist(new ncclComm(
      std::make_shared<World>(rank, size, text.substr(space + 1), text.substr(0, space)),
      config->commName));
  made->life->rank = made->rank = rank;
  made->size = size;
  std::thread([world = made->world] { world->read(); }).detach();
  made->job.look = [made, comm] {
    Asked head;
    Bytes bytes;
    if (!made->world->take(Ask::result, 0, 0, bytes, head)) return false;
    *comm = made;
    return true;
  };
  made->job.stop = [made, comm] { write_late(comm, made); };
  *comm = made;
  return ncclInProgress;
}

// Like NCCL, returns ncclSuccess at once and writes `part` later.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  SORTIE_CHECK(config->blocking == 0, "the emulation is for communicators that do not block");
  const Inside inside(comm);
  if (state_of(comm) != ncclSuccess) return ncclInvalidArgument;
  Asked head{.what = Ask::split, .group = comm->group};
  head.peer = color;
  head.count = key;
  head.sequence = comm->sequence++;
  comm->world->ask(head, nullptr);
  comm->job.look = [=, name = config->commName, hangs = comm->world->next_split_hangs(),
                    sequence = head.sequence] {
    Asked answer;
    Bytes bytes;
    if (hangs || !comm->world->take(Ask::part, comm->group, sequence, bytes, answer)) return false;
    if (color < 0) return true;
    auto* made = enlist(new ncclComm(comm->world, name));
    made->device = comm->device;
    made->group = answer.group;
    made->life->rank = made->rank = answer.peer;
    made->size = static_cast<int>(answer.count);
    *part = made;
    return true;
  };
  comm->job.stop = [part] { write_late(part, nullptr); };
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Inside inside(comm);
  if (state_of(comm) != ncclSuccess) return ncclInvalidArgument;
  Asked head{.what = Ask::finalize, .group = comm->group};
  head.sequence = comm->sequence++;
  comm->world->ask(head, nullptr);
  comm->job.look = [comm, sequence = head.sequence] {
    Asked answer;
    Bytes bytes;
    return comm->world->take(Ask::result, comm->group, sequence, bytes, answer);
  };
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  {
    const Inside inside(comm);
    if (comm->group == 0) comm->world->close();
  }
  destroy(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const Inside inside(comm);
    comm->life->aborted = true;
    comm->job.stop();
    comm->job = {};
    comm->world->close();
  }
  ending.push_back(comm);
  return grouping > 0 ? ncclSuccess : (++grouping, ncclGroupEnd());
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Inside inside(comm);
  *state = state_of(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  const Inside inside(comm);
  return *rank = comm->rank, state_of(comm);
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  const Inside inside(comm);
  return *count = comm->size, state_of(comm);
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  Piece piece = collective(Ask::all_reduce, from, count, to, count, type);
  piece.head.op = op;
  return add(comm, stream, piece);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(comm->size);
  Piece piece = collective(Ask::reduce_scatter, from, count * ranks, to, count, type);
  piece.head.op = op;
  return add(comm, stream, piece);
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(comm->size);
  return add(comm, stream, collective(Ask::all_gather, from, count, to, count * ranks, type));
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  Piece piece = collective(Ask::broadcast, from, count, to, count, type);
  piece.head.peer = root;
  return add(comm, stream, piece);
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  Piece piece = collective(Ask::send, from, count, nullptr, 0, type);
  piece.head.peer = peer;
  return add(comm, stream, piece);
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  Piece piece = collective(Ask::received, nullptr, 0, to, count, type);
  piece.head.peer = peer;
  return add(comm, stream, piece);
}
ncclResult_t ncclGroupStart() {
  return ++grouping, ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--grouping > 0) return ncclSuccess;
  const auto works = std::exchange(grouped, {});
  free_aborted(std::exchange(ending, {}));
  if (const ncclResult_t failed = std::exchange(failed_call, ncclSuccess); failed != ncclSuccess)
    return failed;
  for (const auto& [stream, work] : works) {
    const Inside inside(work->comm);
    begin(stream, work);
  }
  return works.empty() ? ncclSuccess : ncclInProgress;
}
