// NCCL's API between emulated GPUs: communicators that ask the hub.
#include <nccl.h>

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "tests/support/cuda/nccl_hub.h"

namespace emulated_cuda {
namespace {

using Bytes = std::vector<std::byte>;

struct Fault {
  std::string kind;
  int rank = -1;
  std::uint64_t number = 0;

  static Fault from_environment() {
    const char* text = std::getenv("SORTIE_EMULATED_NCCL_FAULT");
    if (text == nullptr) return {};
    char kind[16] = "";
    int rank = -1;
    unsigned long long number = 0;
    SORTIE_CHECK(std::sscanf(text, "%15[a-z]:%d:%llu", kind, &rank, &number) == 3,
                 "SORTIE_EMULATED_NCCL_FAULT is \"{}\"", text);
    return {kind, rank, number};
  }
};

/// A rank's connection to the hub, of all its communicators.
class World {
 public:
  World(int rank, int size, const std::string& host, const std::string& port) : rank_(rank) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) == 0) {
      socket_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(socket_, found->ai_addr, found->ai_addrlen) != 0)
        fail("the other ranks can not be reached");
      ::freeaddrinfo(found);
    }
    Asked head{.what = Ask::join};
    head.peer = rank;
    head.count = size;
    ask(head, nullptr);
  }
  ~World() { ::close(socket_); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// This rank is gone for the others; its reader ends.
  void close() { ::shutdown(socket_, SHUT_RDWR); }

  void ask(const Asked& head, const void* bytes) {
    const std::lock_guard lock(writing_);
    (void)write_message(socket_, head, bytes);
  }
  /// A message of the hub's, once it has come.
  bool take(Ask what, std::uint32_t group, std::uint64_t which, Bytes& bytes, Asked& head) {
    const std::lock_guard lock(mutex_);
    const auto found = come_.find({what, group, which});
    if (found == come_.end()) return false;
    head = found->second.front().first;
    bytes = std::move(found->second.front().second);
    found->second.pop_front();
    if (found->second.empty()) come_.erase(found);
    return true;
  }
  void fail(const std::string& words) {
    const std::lock_guard lock(mutex_);
    if (problem_.empty()) problem_ = words;
    failed_ = true;
  }
  bool failed() const { return failed_; }
  const char* problem() {
    const std::lock_guard lock(mutex_);
    return problem_.empty() ? "" : problem_.c_str();  // which never changes again
  }

  void read() {
    Asked head;
    Bytes bytes;
    while (read_message(socket_, head, bytes)) {
      if (head.what == Ask::failed) {
        fail(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
        continue;
      }
      const std::lock_guard lock(mutex_);
      const std::uint32_t group = head.what == Ask::part ? head.of : head.group;
      const std::uint64_t which =
          head.what == Ask::received ? static_cast<std::uint64_t>(head.peer) : head.sequence;
      come_[{head.what, group, which}].emplace_back(head, std::move(bytes));
      bytes = {};
    }
    fail("the connection to rank 0 is closed");
  }

  /// The fault of the next operation, if it is its turn.
  std::string next_fault() {
    return number_++ == fault_.number && rank_ == fault_.rank ? fault_.kind : "";
  }

 private:
  const int rank_;
  int socket_ = -1;
  const Fault fault_ = Fault::from_environment();
  std::atomic<std::uint64_t> number_{0};
  std::mutex writing_, mutex_;
  std::map<std::tuple<Ask, std::uint32_t, std::uint64_t>, std::deque<std::pair<Asked, Bytes>>>
      come_;
  std::string problem_;
  std::atomic<bool> failed_{false};
};

}  // namespace
}  // namespace emulated_cuda

using namespace emulated_cuda;

struct ncclComm {
  std::shared_ptr<World> world;
  std::uint32_t group = 0;
  int rank = 0, size = 0;
  std::atomic<std::uint64_t> sequence{1};  // 0 is joining
  std::atomic<bool> aborted{false}, broken{false};
  /// What goes on in the background: true once done.
  std::function<bool()> pending;
  std::mutex mutex;
};

namespace {

/// Of one call, or of a group of calls.
struct Piece {
  Asked head;
  const void* from = nullptr;
  std::size_t from_bytes = 0;
  void* to = nullptr;
  std::size_t to_bytes = 0;
};
struct Work {
  std::shared_ptr<World> world;
  ncclComm_t comm = nullptr;
  std::vector<Piece> pieces;
  std::string fault;
  bool begun = false;
};
thread_local int grouping = 0;
thread_local std::map<cudaStream_t, std::shared_ptr<Work>> grouped;

bool go_on(Work& work) {
  if (work.comm->aborted) return true;
  if (work.world->failed() || work.fault == "hang") return false;
  if (work.fault == "error") {
    work.comm->broken = true;
    return false;
  }
  if (work.fault == "kill") ::kill(::getpid(), SIGKILL);
  if (!work.begun) {
    for (const Piece& one : work.pieces) {
      if (one.head.what == Ask::received) continue;
      Asked head = one.head;
      head.bytes = one.from_bytes;
      work.world->ask(head, one.from);
    }
    work.begun = true;
  }
  while (!work.pieces.empty()) {
    const Piece& one = work.pieces.back();
    if (one.to != nullptr) {
      Asked head;
      Bytes bytes;
      const bool is_message = one.head.what == Ask::received;
      if (!work.world->take(
              is_message ? Ask::received : Ask::result, one.head.group,
              is_message ? static_cast<std::uint64_t>(one.head.peer) : one.head.sequence, bytes,
              head))
        return false;
      if (bytes.size() != one.to_bytes || (is_message && head.type != one.head.type)) {
        work.world->fail(
            fmt::format("rank {} of a communicator expects {} bytes of type {} and gets "
                        "{} of type {}",
                        work.comm->rank, one.to_bytes, one.head.type, bytes.size(), head.type));
        return false;
      }
      if (!bytes.empty()) std::memcpy(one.to, bytes.data(), bytes.size());
    }
    work.pieces.pop_back();
  }
  return true;
}

void enqueue_work(cudaStream_t stream, std::shared_ptr<Work> work) {
  work->fault = work->world->next_fault();
  enqueue_when(stream, [work = std::move(work)] { return go_on(*work); }, {});
}

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, Piece piece) {
  if (comm->world->failed()) return ncclRemoteError;
  piece.head.group = comm->group;
  const bool message = piece.head.what == Ask::send || piece.head.what == Ask::received;
  if (!message) piece.head.sequence = comm->sequence++;
  auto& work = grouped[stream];
  if (!work) work = std::make_shared<Work>(Work{comm->world, comm, {}, {}, false});
  // The last one is waited for first: those of one sender are taken in the order of the calls.
  work->pieces.insert(work->pieces.begin(), piece);
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
  auto* made = new ncclComm;
  made->rank = rank;
  made->size = size;
  made->world = std::make_shared<World>(rank, size, text.substr(space + 1), text.substr(0, space));
  std::thread([world = made->world] { world->read(); }).detach();
  made->pending = [made] {
    Asked head;
    Bytes bytes;
    return made->world->take(Ask::result, 0, 0, bytes, head);
  };
  *comm = made;
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  SORTIE_CHECK(config->blocking == 0, "the emulation is for communicators that do not block");
  auto* made = color >= 0 ? new ncclComm : nullptr;
  if (made != nullptr) made->world = comm->world;
  *part = made;
  Asked head{.what = Ask::split, .group = comm->group};
  head.peer = color;
  head.count = key;
  head.sequence = comm->sequence++;
  comm->world->ask(head, nullptr);
  const std::lock_guard lock(comm->mutex);  // a watch may ask how it is at any time
  comm->pending = [comm, made, sequence = head.sequence] {
    Asked answer;
    Bytes bytes;
    if (!comm->world->take(Ask::part, comm->group, sequence, bytes, answer)) return false;
    if (made == nullptr) return true;
    made->group = answer.group;
    made->rank = answer.peer;
    made->size = static_cast<int>(answer.count);
    return true;
  };
  return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  Asked head{.what = Ask::finalize, .group = comm->group};
  head.sequence = comm->sequence++;
  comm->world->ask(head, nullptr);
  const std::lock_guard lock(comm->mutex);
  comm->pending = [comm, sequence = head.sequence] {
    Asked answer;
    Bytes bytes;
    return comm->world->take(Ask::result, comm->group, sequence, bytes, answer);
  };
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->group == 0) comm->world->close();
  delete comm;
  return ncclSuccess;
}
// What is in its streams may still look at it.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  comm->world->close();
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(comm->mutex);
  if (comm->broken || comm->world->failed()) return *state = ncclRemoteError, ncclSuccess;
  if (comm->pending && comm->pending()) comm->pending = nullptr;
  *state = comm->pending ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return *rank = comm->rank, ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return *count = comm->size, ncclSuccess;
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
  for (auto& [stream, work] : std::exchange(grouped, {})) enqueue_work(stream, std::move(work));
  return ncclSuccess;
}
