#include "launcher/ssh/resolver.h"

#include <fmt/core.h>
#include <netdb.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "common/asio/token.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
using asio::ip::tcp;
namespace {

constexpr int kThreads = 8;       // without stuck threads
constexpr int kMostThreads = 64;  // including threads stuck in abandoned lookups

/// The waiting side of a lookup. Used and destroyed on the I/O thread only: a lookup thread may
/// return from the name service after the I/O context with all timers is gone.
struct Waiter {
  explicit Waiter(const asio::any_io_executor& executor) : answered(executor) {}
  asio::steady_timer answered;
  bool begun = false;
  bool done = false;
};

struct Lookup {
  Lookup(std::string name, const std::shared_ptr<Waiter>& who)
      : host(std::move(name)), waiter(who) {}
  const std::string host;
  const std::weak_ptr<Waiter> waiter;
  bool given_up = false, finished = false;  // under the queue's mutex
  // Owned by the lookup thread until the waiter is done, then by the I/O thread.
  int status = 0;
  int error_number = 0;
  std::vector<asio::ip::address> addresses;
};

/// Sets a flag of the waiter on the I/O thread.
void report(const asio::any_io_executor& executor, const Lookup& lookup, bool Waiter::*flag) {
  asio::post(executor, [weak = lookup.waiter, flag] {
    const auto waiter = weak.lock();
    if (!waiter) return;
    (*waiter).*flag = true;
    waiter->answered.cancel();
  });
}

// Runs on a lookup thread.
void look_up(Lookup& lookup) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* list = nullptr;
  lookup.status = ::getaddrinfo(lookup.host.c_str(), nullptr, &hints, &list);
  lookup.error_number = errno;
  if (lookup.status != 0) return;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    tcp::endpoint endpoint;
    if (entry->ai_addrlen > endpoint.capacity()) continue;
    std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
    lookup.addresses.push_back(endpoint.address());
  }
  ::freeaddrinfo(list);
}

}  // namespace

struct Resolver::Queue : std::enable_shared_from_this<Queue> {
  explicit Queue(asio::any_io_executor e) : executor(std::move(e)) {}

  asio::any_io_executor executor;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::shared_ptr<Lookup>> waiting;
  int threads = 0;
  int idle = 0;
  int stuck = 0;         // threads in abandoned lookups
  bool stopped = false;  // once set, the executor is no longer used

  void push(std::shared_ptr<Lookup> lookup) {
    const std::lock_guard lock(mutex);
    waiting.push_back(std::move(lookup));
    if (idle >= static_cast<int>(waiting.size()) || threads - stuck >= kThreads) {
      wake.notify_one();
      return;
    }
    add_thread();
  }

  void add_thread() {
    if (threads >= kMostThreads) return;
    ++threads;
    std::thread([self = shared_from_this()] { self->work(); }).detach();
  }

  // Abandons a lookup after its timeout. Its thread is replaced until it returns.
  void give_up(Lookup& lookup) {
    const std::lock_guard lock(mutex);
    if (lookup.finished) return;
    lookup.given_up = true;
    ++stuck;
    if (!waiting.empty()) add_thread();
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      wake.wait(lock, [&] { return stopped || !waiting.empty(); });
      --idle;
      if (stopped) return;
      const auto lookup = std::move(waiting.front());
      waiting.pop_front();
      report(executor, *lookup, &Waiter::begun);
      lock.unlock();
      look_up(*lookup);
      lock.lock();
      if (stopped) return;
      lookup->finished = true;
      if (lookup->given_up) {
        --stuck;
        if (threads - stuck > kThreads) {
          --threads;
          return;
        }
        continue;
      }
      report(executor, *lookup, &Waiter::done);
    }
  }
};

Resolver::Resolver(asio::any_io_executor executor)
    : queue_(std::make_shared<Queue>(std::move(executor))) {}

void Resolver::stop() {
  const std::lock_guard lock(queue_->mutex);
  queue_->stopped = true;
  queue_->waiting.clear();
  queue_->wake.notify_all();
}

asio::awaitable<Result<std::vector<tcp::endpoint>>> Resolver::resolve(
    std::string host, int port, std::chrono::milliseconds timeout) {
  const auto port_number = static_cast<std::uint16_t>(port);
  boost::system::error_code not_numeric;
  const auto address = asio::ip::make_address(host, not_numeric);
  if (!not_numeric) co_return std::vector<tcp::endpoint>{tcp::endpoint(address, port_number)};

  const auto waiter = std::make_shared<Waiter>(queue_->executor);
  const auto lookup = std::make_shared<Lookup>(host, waiter);
  // The timeout starts when a thread begins the lookup, because many lookups may be queued.
  waiter->answered.expires_at(std::chrono::steady_clock::time_point::max());
  queue_->push(lookup);
  bool timing = false;
  bool expired = false;
  while (!waiter->done && !expired) {
    if (waiter->begun && !timing) {
      timing = true;
      waiter->answered.expires_after(timeout);
    }
    const auto [error] = co_await waiter->answered.async_wait(kToken);
    expired = !error;
  }
  if (!waiter->done) queue_->give_up(*lookup);
  if (!waiter->done)
    co_return fail(ErrorCode::resolve,
                   fmt::format("name {}: no answer from the name service within {} ms; check "
                               "/etc/resolv.conf, or raise runner.ssh.resolve_timeout",
                               host, timeout.count()));
  if (lookup->status != 0) {
    const char* why = lookup->status == EAI_SYSTEM ? strerrordesc_np(lookup->error_number)
                                                   : ::gai_strerror(lookup->status);
    co_return fail(ErrorCode::resolve,
                   fmt::format("name {}: {}; check the spelling, /etc/hosts and DNS, or give it a "
                               "HostName in ~/.ssh/config",
                               host, why));
  }
  std::vector<tcp::endpoint> endpoints;
  for (const auto& found : lookup->addresses) endpoints.emplace_back(found, port_number);
  co_return endpoints;
}

}  // namespace sortie::launcher::ssh
