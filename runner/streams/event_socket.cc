#include "runner/streams/event_socket.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "common/base/json_member.h"
#include "common/base/log.h"
#include "common/base/utf8.h"

namespace sortie::runner {
namespace {

constexpr unsigned kMaxWarnings = 10;

bool is_valid_text(std::string_view text) {
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t length = utf8_length(text);
    if (length == 0 || (lead < 0x20 && lead != '\t')) return false;
    text.remove_prefix(length);
  }
  return true;
}

/// Whether the line is {"type":"listen"}. Parses it only if that is possible.
bool asks_for_answers(std::string_view line) {
  constexpr std::size_t kLongest = 256;
  if (line.size() > kLongest || line.find("listen") == std::string_view::npos) return false;
  return json_member::text(nlohmann::json::parse(line, nullptr, false), "type") == "listen";
}

}  // namespace

bool is_event_line(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t");
  const std::size_t last = line.find_last_not_of(" \t");
  return first != std::string_view::npos && first < last && line[first] == '{' &&
         line[last] == '}' && is_valid_text(line);
}

void EventSocket::take_connection(Fd fd) {
  if (connections_.size() >= kMaxConnections)
    return warn(
        fmt::format("more than {} connections to SORTIE_SOCKET, one refused", kMaxConnections));
  auto connection = std::make_shared<Connection>(io_);
  connection->stream.assign(fd.release());
  connections_.push_back(connection);
  await_data(connection);
}

void EventSocket::await_data(const std::shared_ptr<Connection>& connection) {
  connection->stream.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                                [this, connection](const boost::system::error_code& error) {
                                  if (error) return;
                                  if (read_all(*connection)) return await_data(connection);
                                  connection->stream.close();
                                  std::erase(connections_, connection);
                                });
}

/// Returns false at the end of the stream.
bool EventSocket::read_all(Connection& connection) {
  char buffer[16 << 10];
  for (int rounds = 0; rounds < 16; ++rounds) {
    const ssize_t count = ::read(connection.stream.native_handle(), buffer, sizeof buffer);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) {
      if (!connection.line.empty()) emit(connection);
      return false;
    }
    take(connection, std::string_view(buffer, static_cast<std::size_t>(count)));
  }
  return true;
}

void EventSocket::take(Connection& connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (!connection.skipping && connection.line.size() + part.size() > kMaxLineBytes) {
      warn(fmt::format("a line of more than {} bytes on SORTIE_SOCKET dropped", kMaxLineBytes));
      connection.skipping = true;
      connection.line.clear();
      connection.line.shrink_to_fit();
    }
    if (!connection.skipping) connection.line.append(part);
    if (end == std::string_view::npos) return;
    if (!connection.skipping) emit(connection);
    connection.skipping = false;
    connection.line.clear();
    bytes.remove_prefix(end + 1);
  }
}

void EventSocket::emit(Connection& connection) {
  std::string& line = connection.line;
  if (line.ends_with('\r')) line.pop_back();
  if (line.empty()) return;
  if (asks_for_answers(line))
    connection.listens = true;
  else if (is_event_line(line))
    on_line_(std::move(line));
  else
    warn("a line on SORTIE_SOCKET that is no JSON object in UTF-8 dropped");
  line.clear();
}

void EventSocket::answer(const std::string& line) {
  for (const auto& connection : connections_) {
    if (!connection->listens) continue;
    if (connection->answer_bytes + line.size() + 1 > kMaxAnswerBytes) {
      warn(fmt::format("{} bytes of answers were not read from SORTIE_SOCKET, one more dropped",
                       connection->answer_bytes));
      continue;
    }
    connection->answers.push_back(line + '\n');
    connection->answer_bytes += line.size() + 1;
    write_answers(connection);
  }
}

void EventSocket::write_answers(const std::shared_ptr<Connection>& connection) {
  if (connection->awaits_room) return;
  while (!connection->answers.empty()) {
    const std::string& front = connection->answers.front();
    const ssize_t count =
        ::send(connection->stream.native_handle(), front.data() + connection->written_of_front,
               front.size() - connection->written_of_front, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      connection->awaits_room = true;
      return connection->stream.async_wait(
          boost::asio::posix::stream_descriptor::wait_write,
          [this, connection](const boost::system::error_code& error) {
            connection->awaits_room = false;
            if (!error) write_answers(connection);
          });
    }
    if (count < 0) {  // the peer has closed; read_all() handles what it wrote before
      connection->listens = false;
      connection->answers.clear();
      connection->written_of_front = connection->answer_bytes = 0;
      return;
    }
    connection->written_of_front += static_cast<std::size_t>(count);
    if (connection->written_of_front < front.size()) continue;
    connection->answer_bytes -= front.size();
    connection->written_of_front = 0;
    connection->answers.pop_front();
  }
}

void EventSocket::forget_answers() {
  for (const auto& connection : connections_) {
    const std::size_t kept = connection->written_of_front > 0 ? 1 : 0;  // finish a started line
    while (connection->answers.size() > kept) {
      connection->answer_bytes -= connection->answers.back().size();
      connection->answers.pop_back();
    }
  }
}

void EventSocket::finish() {
  if (!listener_.is_open()) return;
  listener_.accept_all();
  for (const auto& connection : connections_) {
    // Its writers are dead, so only the small socket buffer is left.
    while (read_all(*connection)) {
      char probe;
      if (::recv(connection->stream.native_handle(), &probe, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
        break;
    }
    if (!connection->line.empty()) emit(*connection);
    connection->stream.close();
  }
  connections_.clear();
  listener_.close();
}

void EventSocket::warn(std::string_view what) {
  if (++warnings_ <= kMaxWarnings)
    log::warning("{}: {}{}", name_, what,
                 warnings_ == kMaxWarnings ? " (no further warnings)" : "");
}

}  // namespace sortie::runner
