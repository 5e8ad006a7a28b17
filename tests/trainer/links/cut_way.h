// CutWay: a TCP proxy on loopback between two ends of a test. It can cut connections, stall, and
// alter or repeat bytes. It runs on its own thread.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/base/fd.h"

namespace sortie::test {

class CutWay {
 public:
  enum class Fault { none, cut, still, flip, replay };

  /// Forwards connections to that port of this machine.
  explicit CutWay(std::uint16_t port) : to_(port) {
    listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in any = loopback(0);
    socklen_t size = sizeof any;
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&any), sizeof any);
    ::listen(listener_.get(), 64);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&any), &size);
    port_ = ntohs(any.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~CutWay() {
    stop_ = true;
    thread_.join();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void set(Fault fault) { fault_ = fault; }
  std::size_t connections() const { return connections_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Both {
    Fd ends[2];
    std::string last[2];  // the last bytes read at each end
  };

  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }

  static bool write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  void accept() {
    Fd from(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Fd to(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in target = loopback(to_);
    if (!from ||
        ::connect(to.get(), reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0)
      return;
    ++connections_;
    pairs_.push_back({{std::move(from), std::move(to)}, {}});
  }

  /// Forwards bytes from one end to the other. Returns false if the connection has ended.
  bool pass(Both& pair, int end) {
    char buffer[64 << 10];
    const ssize_t count = ::recv(pair.ends[end].get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count <= 0) return count < 0 && errno == EAGAIN;
    std::string got(buffer, static_cast<std::size_t>(count));
    bytes_ += got.size();
    Fault fault = fault_;
    if (fault == Fault::flip && fault_.compare_exchange_strong(fault, Fault::none))
      got[got.size() / 2] = static_cast<char>(got[got.size() / 2] ^ 4);
    if (fault == Fault::replay && !pair.last[end].empty() &&
        fault_.compare_exchange_strong(fault, Fault::none))
      got = pair.last[end] + got;
    pair.last[end] = got;
    return write_all(pair.ends[1 - end].get(), got);
  }

  void run() {
    while (!stop_) {
      const Fault fault = fault_;
      if (fault == Fault::cut) pairs_.clear();
      std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
      if (fault != Fault::still)
        for (const Both& pair : pairs_)
          for (const Fd& end : pair.ends) polled.push_back({end.get(), POLLIN, 0});
      if (::poll(polled.data(), polled.size(), 20) <= 0) continue;
      std::vector<std::size_t> ended;
      for (std::size_t i = 1; i < polled.size(); ++i)
        if (polled[i].revents != 0 && !pass(pairs_[(i - 1) / 2], static_cast<int>((i - 1) % 2)))
          ended.push_back((i - 1) / 2);
      for (std::size_t i = pairs_.size(); i-- > 0;)
        if (std::find(ended.begin(), ended.end(), i) != ended.end())
          pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(i));
      if ((polled[0].revents & POLLIN) != 0 && fault != Fault::still) accept();
    }
  }

  const std::uint16_t to_;
  std::uint16_t port_ = 0;
  Fd listener_;
  std::atomic<Fault> fault_{Fault::none};
  std::atomic<bool> stop_{false};
  std::atomic<std::size_t> connections_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::vector<Both> pairs_;
  std::thread thread_;
};

}  // namespace sortie::test
