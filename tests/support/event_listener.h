// The runner's end of SORTIE_SOCKET: receives the events that a rank sends.
#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "trainer/metrics/event_sink.h"

namespace sortie::trainer::test {

/// Receives what a rank sends to its runner, one JSON object per line.
class EventListener {
 public:
  explicit EventListener(const std::string& path)
      : path_(path), socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
            0);
    REQUIRE(::listen(socket_.get(), 1) == 0);
  }
  EventSink connect() {
    auto sink = EventSink::open(path_);
    REQUIRE(sink);
    peer_ = Fd(::accept(socket_.get(), nullptr, nullptr));
    return std::move(*sink);
  }
  /// All events of this type so far. They must fit into the socket's buffer.
  std::vector<nlohmann::json> events(const char* type) {
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::recv(peer_.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
      text.append(buffer, static_cast<std::size_t>(got));
    all_ += text;
    std::vector<nlohmann::json> found;
    std::istringstream lines(all_);
    for (std::string line; std::getline(lines, line);)
      if (nlohmann::json event = nlohmann::json::parse(line); event.value("type", "") == type)
        found.push_back(std::move(event));
    return found;
  }

 private:
  std::string path_, all_;
  Fd socket_, peer_;
};

}  // namespace sortie::trainer::test
