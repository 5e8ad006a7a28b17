#include "tests/support/cuda/nccl_hub.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "common/base/check.h"
#include "common/base/fd.h"
#include "trainer/tensor/dtype.h"

namespace emulated_cuda {
namespace {

using Bytes = std::vector<std::byte>;
using sortie::trainer::bf16;

template <class T>
T combined(T a, T b, std::uint32_t op) {
  if constexpr (std::is_same_v<T, bf16>)
    return bf16(combined(static_cast<float>(a), static_cast<float>(b), op));
  else if constexpr (std::is_floating_point_v<T>)
    return op == ncclSum ? a + b : std::fmax(a, b);
  else
    return op == ncclSum ? static_cast<T>(a + b) : std::max(a, b);
}

/// Combines elements [begin, end) of all inputs, starting with that of rank `first`.
template <class T>
void combine(const std::vector<Bytes>& inputs, std::size_t begin, std::size_t end,
             std::size_t first, std::uint32_t op, Bytes& out) {
  for (std::size_t i = begin; i < end; ++i) {
    T sum{};
    for (std::size_t step = 0; step < inputs.size(); ++step) {
      T value;
      std::memcpy(&value, inputs[(first + step) % inputs.size()].data() + i * sizeof(T), sizeof(T));
      sum = step == 0 ? value : combined(sum, value, op);
    }
    std::memcpy(out.data() + i * sizeof(T), &sum, sizeof(T));
  }
}

/// Sums each block starting one rank later, as around a ring.
Bytes reduced(const std::vector<Bytes>& inputs, const Asked& asked) {
  Bytes out(inputs[0].size());
  const std::size_t count = out.size() / size_of(asked.type);
  const std::size_t block = (count + inputs.size() - 1) / inputs.size();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t begin = std::min(i * block, count), end = std::min(begin + block, count);
    const auto add = [&]<class T>(T) { combine<T>(inputs, begin, end, i + 1, asked.op, out); };
    if (asked.type == ncclFloat32) add(0.0f);
    if (asked.type == ncclFloat64) add(0.0);
    if (asked.type == ncclBfloat16) add(bf16());
    if (asked.type == ncclInt32) add(std::int32_t{0});
    if (asked.type == ncclInt64) add(std::int64_t{0});
    if (asked.type == ncclUint8) add(std::uint8_t{0});
  }
  return out;
}

const char* name_of(Ask what) {
  switch (what) {
    case Ask::all_reduce:
      return "all-reduce";
    case Ask::reduce_scatter:
      return "reduce-scatter";
    case Ask::all_gather:
      return "all-gather";
    case Ask::broadcast:
      return "broadcast";
    case Ask::split:
      return "split";
    case Ask::finalize:
      return "end";
    default:
      return "message";
  }
}

class Hub : public std::enable_shared_from_this<Hub> {
 public:
  explicit Hub(sortie::Fd listener) : listener_(std::move(listener)) {}

  void serve() {
    for (;;) {
      const int socket = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) return;
      std::thread([self = shared_from_this(), socket] {
        self->serve_rank(sortie::Fd(socket));
      }).detach();
    }
  }

 private:
  struct Group {
    std::vector<int> ranks;  // ranks in the world
  };
  struct Waiting {
    std::map<int, Asked> asked;  // by rank in the group
    std::map<int, Bytes> inputs;
  };

  void serve_rank(sortie::Fd socket) {
    Asked head;
    Bytes bytes;
    if (!read_message(socket.get(), head, bytes) || head.what != Ask::join) return;
    const int rank = head.peer;
    {
      const std::lock_guard lock(mutex_);
      sockets_[rank] = socket.get();
      size_ = static_cast<int>(head.count);
      if (static_cast<int>(sockets_.size()) == size_) {
        for (int one = 0; one < size_; ++one) groups_[0].ranks.push_back(one);
        for (int one = size_ - 1; one >= 0; --one) tell(one, {.what = Ask::result}, {});
      }
    }
    while (read_message(socket.get(), head, bytes)) {
      const std::lock_guard lock(mutex_);
      take(rank, head, std::move(bytes));
      bytes = {};
    }
    const std::lock_guard lock(mutex_);
    sockets_.erase(rank);
    if (!finished_.contains(rank)) fail(fmt::format("rank {} has closed its connection", rank));
    if (sockets_.empty()) ::shutdown(listener_.get(), SHUT_RDWR);
  }

  void take(int rank, const Asked& head, Bytes bytes) {
    const Group& group = groups_[head.group];
    const auto place = std::ranges::find(group.ranks, rank);
    const int member = static_cast<int>(place - group.ranks.begin());
    if (head.what == Ask::send || head.what == Ask::connect) {
      Asked out = head;
      out.what = head.what == Ask::send ? Ask::received : Ask::connected;
      out.peer = member;
      return tell(group.ranks[static_cast<std::size_t>(head.peer)], out, bytes);
    }
    Waiting& waiting = waiting_[{head.group, head.sequence}];
    for (const auto& [other, asked] : waiting.asked)
      if (asked.what != head.what || (head.what != Ask::split && asked.count != head.count) ||
          asked.type != head.type || asked.op != head.op ||
          (head.what == Ask::broadcast && asked.peer != head.peer))
        return fail(
            fmt::format("operation {} of a communicator of {} ranks: rank {} asks for {} of {} "
                        "elements of type "
                        "{}, rank {} for {} of {} of type {}",
                        head.sequence, group.ranks.size(), rank, name_of(head.what), head.count,
                        head.type, group.ranks[static_cast<std::size_t>(other)],
                        name_of(asked.what), asked.count, asked.type));
    waiting.asked[member] = head;
    waiting.inputs[member] = std::move(bytes);
    if (waiting.asked.size() < group.ranks.size()) return;
    const Waiting whole = std::move(waiting);
    waiting_.erase({head.group, head.sequence});
    head.what == Ask::split ? split(head, whole) : answer(head, whole);
  }

  void answer(const Asked& head, const Waiting& whole) {
    const std::vector<int> ranks = groups_[head.group].ranks;
    std::vector<Bytes> inputs;
    for (const auto& [member, bytes] : whole.inputs) inputs.push_back(bytes);
    Bytes out;
    if (head.what == Ask::all_reduce || head.what == Ask::reduce_scatter)
      out = reduced(inputs, head);
    else if (head.what == Ask::all_gather)
      for (const Bytes& one : inputs) out.insert(out.end(), one.begin(), one.end());
    else if (head.what == Ask::broadcast)
      out = inputs[static_cast<std::size_t>(head.peer)];
    // Answer rank 0 last, because the hub ends with its process.
    for (std::size_t i = ranks.size(); i-- > 0;) {
      Bytes mine = out;
      if (head.what == Ask::reduce_scatter) {
        const std::size_t block = out.size() / ranks.size();
        const auto begin = out.begin() + static_cast<std::ptrdiff_t>(i * block);
        mine.assign(begin, begin + static_cast<std::ptrdiff_t>(block));
      }
      if (head.what == Ask::finalize && head.group == 0) finished_[ranks[i]] = true;
      tell(ranks[i], {.what = Ask::result, .group = head.group, .sequence = head.sequence}, mine);
    }
  }

  void split(const Asked& head, const Waiting& whole) {
    const std::vector<int> ranks = groups_[head.group].ranks;
    std::map<int, std::vector<int>> parts;  // by color; members of the group
    for (const auto& [member, asked] : whole.asked) parts[asked.peer].push_back(member);
    for (auto& [color, members] : parts) {
      std::ranges::stable_sort(members, {}, [&](int m) { return whole.asked.at(m).count; });
      const std::uint32_t number = ++last_group_;
      if (color >= 0)
        for (const int member : members)
          groups_[number].ranks.push_back(ranks[static_cast<std::size_t>(member)]);
      for (std::size_t i = members.size(); i-- > 0;) {
        Asked out{.what = Ask::part, .group = number, .of = head.group};
        out.sequence = head.sequence;
        out.peer = color >= 0 ? static_cast<int>(i) : -1;
        out.count = static_cast<std::int64_t>(members.size());
        tell(ranks[static_cast<std::size_t>(members[i])], out, {});
      }
    }
  }

  void fail(const std::string& words) {
    Bytes bytes(words.size());
    std::memcpy(bytes.data(), words.data(), words.size());
    for (const auto& [rank, socket] : sockets_) tell(rank, {.what = Ask::failed}, bytes);
  }

  void tell(int rank, Asked head, const Bytes& bytes) {
    head.bytes = bytes.size();
    const auto found = sockets_.find(rank);
    if (found != sockets_.end()) (void)write_message(found->second, head, bytes.data());
  }

  sortie::Fd listener_;
  std::mutex mutex_;
  int size_ = 0;
  std::map<int, int> sockets_;  // by rank
  std::map<int, bool> finished_;
  std::map<std::uint32_t, Group> groups_;
  std::uint32_t last_group_ = 0;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Waiting> waiting_;
};

}  // namespace

std::size_t size_of(std::uint32_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

bool write_message(int socket, const Asked& head, const void* bytes) {
  const auto write = [socket](const void* data, std::size_t size) {
    const auto* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t count = ::send(socket, at, size, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      at += count;
      size -= static_cast<std::size_t>(count);
    }
    return true;
  };
  return write(&head, sizeof head) && write(bytes, head.bytes);
}

bool read_message(int socket, Asked& head, std::vector<std::byte>& bytes) {
  const auto read = [socket](void* data, std::size_t size) {
    auto* at = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t count = ::recv(socket, at, size, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      at += count;
      size -= static_cast<std::size_t>(count);
    }
    return true;
  };
  if (!read(&head, sizeof head)) return false;
  bytes.resize(head.bytes);
  return read(bytes.data(), bytes.size());
}

std::uint16_t start_hub() {
  sortie::Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  const bool there =
      listener && ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      ::listen(listener.get(), SOMAXCONN) == 0 &&
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  SORTIE_CHECK(there, "no socket for an emulated NCCL");
  std::thread([hub = std::make_shared<Hub>(std::move(listener))] { hub->serve(); }).detach();
  return ntohs(address.sin_port);
}

}  // namespace emulated_cuda
