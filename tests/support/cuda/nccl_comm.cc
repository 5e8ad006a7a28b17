#include "tests/support/cuda/nccl_comm.h"

#include <pthread.h>
#include <unistd.h>

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

#include "common/base/check.h"
#include "tests/support/cuda/streams.h"

ncclComm::ncclComm(std::shared_ptr<emulated_cuda::World> of, const char* called)
    : world(std::move(of)), name(called), name_before(called) {
  SORTIE_CHECK(cudaGetDevice(&device) == cudaSuccess, "no GPU for a communicator");
}

namespace emulated_cuda {
namespace {

std::mutex mutex_of_living;
std::set<ncclComm_t> living;

/// A send is complete when it has been received, because NCCL may have no buffer for it.
bool is_done(Calls& work, const Piece& one) {
  Asked head;
  Bytes bytes;
  if (one.head.what == Ask::send)
    return work.world->take(Ask::connected, one.head.group,
                            World::which(one.head.peer, Role::taker), bytes, head);
  const bool is_message = one.head.what == Ask::received;
  if (!work.world->take(is_message ? Ask::received : Ask::result, one.head.group,
                        is_message ? static_cast<std::uint64_t>(one.head.peer) : one.head.sequence,
                        bytes, head))
    return false;
  if (bytes.size() != one.to_bytes || (is_message && head.type != one.head.type)) {
    work.world->fail(
        fmt::format("rank {} of a communicator expects {} bytes of type {} and gets {} of type {}",
                    work.life->rank, one.to_bytes, one.head.type, bytes.size(), head.type));
    return false;
  }
  if (!bytes.empty()) std::memcpy(one.to, bytes.data(), bytes.size());
  if (is_message) {
    Asked taken{.what = Ask::connect, .group = one.head.group};
    taken.peer = one.head.peer;
    taken.op = static_cast<std::uint32_t>(Role::taker);
    work.world->ask(taken, nullptr);
  }
  return true;
}

bool go_on(Calls& work) {
  if (work.life->aborted) return true;
  if (work.world->failed() || work.fault == "hang") return false;
  if (work.fault == "error") {
    work.life->broken = true;
    return false;
  }
  if (work.fault == "kill") ::kill(::getpid(), SIGKILL);
  if (work.fault == "exit") ::_exit(0);
  if (work.fault == "stop") {
    work.fault.clear();
    ::kill(::getpid(), SIGSTOP);
  }
  if (!work.begun) {
    for (const Piece& one : work.pieces) {
      if (one.head.what == Ask::received) continue;
      Asked head = one.head;
      head.bytes = one.from_bytes;
      work.world->ask(head, one.from);
    }
    work.begun = true;
  }
  work.seen = work.world->news();
  // Process pieces in the order of the calls: messages of one sender must not overtake each other.
  std::set<int> waited_for;
  for (auto one = work.pieces.begin(); one != work.pieces.end();) {
    const bool is_message = one->head.what == Ask::received;
    const bool must_wait = is_message && waited_for.contains(one->head.peer);
    if (!must_wait && is_done(work, *one)) {
      one = work.pieces.erase(one);
      continue;
    }
    if (is_message) waited_for.insert(one->head.peer);
    ++one;
  }
  return work.pieces.empty();
}

/// Connections that the work needs and that do not exist yet, with the role of the other end.
std::set<std::pair<int, Role>> to_connect(const ncclComm& comm, const Calls& work) {
  std::set<std::pair<int, Role>> wanted;
  for (const Piece& one : work.pieces) {
    if (one.head.what == Ask::send)
      wanted.emplace(one.head.peer, Role::receiver);
    else if (one.head.what == Ask::received)
      wanted.emplace(one.head.peer, Role::sender);
    else
      for (int member = 0; member < comm.size; ++member) wanted.emplace(member, Role::member);
  }
  std::erase_if(wanted, [&](const auto& one) {
    return one.first == comm.rank || comm.connected.contains(one);
  });
  return wanted;
}

}  // namespace

ncclComm_t enlist(ncclComm_t comm) {
  const std::lock_guard lock(mutex_of_living);
  living.insert(comm);
  return comm;
}

Inside::Inside(ncclComm_t comm) : comm_(comm) {
  {
    const std::lock_guard lock(mutex_of_living);
    SORTIE_CHECK(living.contains(comm), "a call of a communicator of NCCL that is gone");
  }
  SORTIE_CHECK(!comm->inside.exchange(true), "two threads in calls of a communicator of NCCL");
  if (comm->world->call_time().count() > 0) std::this_thread::sleep_for(comm->world->call_time());
}

ncclResult_t state_of(ncclComm_t comm) {
  if (comm->life->broken || comm->world->failed()) return ncclRemoteError;
  if (comm->job.look && comm->job.look()) comm->job = {};
  return comm->job.look ? ncclInProgress : ncclSuccess;
}

void destroy(ncclComm_t comm) {
  SORTIE_CHECK(comm->name == comm->name_before, "the name of communicator {} is gone before it",
               comm->name_before);
  const std::lock_guard lock(mutex_of_living);
  living.erase(comm);
  delete comm;
}

void write_late(ncclComm_t* place, ncclComm_t value) {
  pthread_attr_t attributes;
  void* stack = nullptr;
  std::size_t size = 0;
  if (::pthread_getattr_np(::pthread_self(), &attributes) == 0) {
    (void)::pthread_attr_getstack(&attributes, &stack, &size);
    (void)::pthread_attr_destroy(&attributes);
  }
  const auto* at = reinterpret_cast<const std::byte*>(place);
  const auto* begin = static_cast<const std::byte*>(stack);
  SORTIE_CHECK(at < begin || at >= begin + size,
               "NCCL writes a communicator to a stack frame that may be gone");
  *place = value;
}

void free_aborted(const std::vector<ncclComm_t>& comms) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (ncclComm_t comm : comms) {
    Device& gpu = device(comm->device);
    for (;;) {
      {
        const std::lock_guard lock(gpu.mutex);
        gpu.do_some();
        if (gpu.idle()) break;
      }
      SORTIE_CHECK(std::chrono::steady_clock::now() < limit,
                   "ncclCommAbort waits for all that its GPU was given, which does not end");
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    destroy(comm);
  }
}

void begin(cudaStream_t stream, std::shared_ptr<Calls> work) {
  ncclComm_t comm = work->comm;
  SORTIE_CHECK(!comm->job.look, "a communicator of NCCL with two calls under way");
  auto missing = to_connect(*comm, *work);
  for (const auto& [member, role] : missing) {
    Asked head{.what = Ask::connect, .group = comm->group};
    head.peer = member;
    head.op = static_cast<std::uint32_t>(role == Role::sender     ? Role::receiver
                                         : role == Role::receiver ? Role::sender
                                                                  : Role::member);
    comm->world->ask(head, nullptr);
  }
  work->fault = comm->world->next_fault();
  const std::uint64_t looks = 1 + comm->sequence % 3;
  comm->job.look = [=, count = std::uint64_t{0}]() mutable {
    std::erase_if(missing, [&](const auto& one) {
      Asked head;
      Bytes bytes;
      if (!comm->world->take(Ask::connected, comm->group, World::which(one.first, one.second),
                             bytes, head))
        return false;
      comm->connected.insert(one);
      return true;
    });
    if (!missing.empty() || work->fault == "connect" || ++count <= looks) return false;
    enqueue_when(
        stream, [work] { return go_on(*work); }, {},
        [work] { return work->life->aborted || work->seen != work->world->news(); });
    return true;
  };
}

}  // namespace emulated_cuda
