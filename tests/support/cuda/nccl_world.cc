#include "tests/support/cuda/nccl_world.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "common/base/check.h"

namespace emulated_cuda {
namespace {

std::chrono::milliseconds call_time_from_environment() {
  const char* text = std::getenv("SORTIE_EMULATED_NCCL_CALL_MS");
  return std::chrono::milliseconds(text != nullptr ? std::atoi(text) : 0);
}

}  // namespace

Fault Fault::from_environment() {
  const char* text = std::getenv("SORTIE_EMULATED_NCCL_FAULT");
  if (text == nullptr) return {};
  char kind[16] = "";
  int rank = -1;
  unsigned long long number = 0;
  SORTIE_CHECK(std::sscanf(text, "%15[a-z]:%d:%llu", kind, &rank, &number) == 3,
               "SORTIE_EMULATED_NCCL_FAULT is \"{}\"", text);
  return {kind, rank, number};
}

World::World(int rank, int size, const std::string& host, const std::string& port)
    : rank_(rank), call_time_(call_time_from_environment()) {
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

World::~World() {
  ::close(socket_);
}

void World::close() {
  ::shutdown(socket_, SHUT_RDWR);
}

void World::ask(const Asked& head, const void* bytes) {
  const std::lock_guard lock(writing_);
  (void)write_message(socket_, head, bytes);
}

bool World::take(Ask what, std::uint32_t group, std::uint64_t which, Bytes& bytes, Asked& head) {
  const std::lock_guard lock(mutex_);
  const auto found = come_.find({what, group, which});
  if (found == come_.end()) return false;
  head = found->second.front().first;
  bytes = std::move(found->second.front().second);
  found->second.pop_front();
  if (found->second.empty()) come_.erase(found);
  return true;
}

void World::fail(const std::string& words) {
  const std::lock_guard lock(mutex_);
  if (problem_.empty()) problem_ = words;
  failed_ = true;
}

const char* World::problem() {
  const std::lock_guard lock(mutex_);
  return problem_.empty() ? "" : problem_.c_str();  // does not change once it is set
}

void World::read() {
  Asked head;
  Bytes bytes;
  while (read_message(socket_, head, bytes)) {
    if (head.what == Ask::failed) {
      fail(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      continue;
    }
    const std::lock_guard lock(mutex_);
    const std::uint32_t group = head.what == Ask::part ? head.of : head.group;
    std::uint64_t number = head.sequence;
    if (head.what == Ask::received) number = static_cast<std::uint64_t>(head.peer);
    if (head.what == Ask::connected) number = which(head.peer, static_cast<Role>(head.op));
    come_[{head.what, group, number}].emplace_back(head, std::move(bytes));
    bytes = {};
    ++news_;
  }
  fail("the connection to rank 0 is closed");
}

std::string World::next_fault() {
  return number_++ == fault_.number && rank_ == fault_.rank ? fault_.kind : "";
}

bool World::next_split_hangs() {
  return splits_++ == fault_.number && rank_ == fault_.rank && fault_.kind == "split";
}

}  // namespace emulated_cuda
