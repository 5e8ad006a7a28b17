#include "trainer/parallel/socket_link.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {
namespace {

[[noreturn]] void wrong_size(std::size_t came, std::size_t expected) {
  throw CommunicatorError(
      fmt::format("received a message of {} bytes, expected {}", came, expected));
}

}  // namespace

void SocketLink::settle(Message* message, Message::State state) {
  if (message == nullptr) return;
  message->state.store(state, std::memory_order_release);
  if (state == Message::State::done) ++completed_;
}

void SocketLink::send(int tag, std::span<const std::byte> bytes, Message& message) {
  if (!fate_.empty()) return settle(&message, Message::State::lost);
  Outgoing one;
  one.header = {static_cast<std::uint32_t>(tag), static_cast<std::uint32_t>(bytes.size())};
  one.bytes = bytes;
  one.message = &message;
  out_.push_back(std::move(one));
  if (open() && out_.size() == 1) write_some();
}

void SocketLink::receive(int tag, std::span<std::byte> bytes, Message& message) {
  const auto key = static_cast<std::uint32_t>(tag);
  if (const auto early = early_.find(key); early != early_.end()) {
    const std::vector<std::byte> came = std::move(early->second.front());
    early->second.pop_front();
    if (early->second.empty()) early_.erase(early);
    if (came.size() != bytes.size()) wrong_size(came.size(), bytes.size());
    if (!came.empty()) std::memcpy(bytes.data(), came.data(), came.size());
    return settle(&message, Message::State::done);
  }
  if (!fate_.empty()) return settle(&message, Message::State::lost);
  wanted_[key].push_back({bytes, &message});
}

void SocketLink::withdraw(Message& message) {
  for (auto& [tag, all] : wanted_)
    std::erase_if(all, [&](const Wanted& one) { return one.message == &message; });
  std::erase_if(wanted_, [](const auto& entry) { return entry.second.empty(); });
  if (filling_ == &message) {
    // The bytes received so far are useless; the rest is read and discarded.
    kept_in_.resize(into_.size());
    into_ = kept_in_;
    filling_ = nullptr;
  }
  for (Outgoing& one : out_) {
    if (one.message != &message) continue;
    one.kept.assign(one.bytes.begin(), one.bytes.end());
    one.bytes = one.kept;
    one.message = nullptr;
  }
}

void SocketLink::lose(std::string why) {
  if (!fate_.empty()) return;
  fate_ = std::move(why);
  socket_.reset();
  for (const Outgoing& one : out_) settle(one.message, Message::State::lost);
  out_.clear();
  for (const auto& [tag, all] : wanted_)
    for (const Wanted& one : all) settle(one.message, Message::State::lost);
  wanted_.clear();
  settle(filling_, Message::State::lost);
  filling_ = nullptr;
}

std::uint64_t SocketLink::move() {
  if (open()) write_some();
  if (open()) read_some();
  return std::exchange(completed_, 0);
}

void SocketLink::write_some() {
  while (!out_.empty()) {
    Outgoing& one = out_.front();
    const std::size_t of_header = std::min(one.sent, sizeof one.header);
    const std::size_t of_bytes = one.sent - of_header;
    iovec parts[2] = {
        {reinterpret_cast<char*>(&one.header) + of_header, sizeof one.header - of_header},
        {const_cast<std::byte*>(one.bytes.data()) + of_bytes, one.bytes.size() - of_bytes}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    // What the other rank sent before it ended must still be read; reading then reports the loss.
    if (count < 0) return read_some();
    one.sent += static_cast<std::size_t>(count);
    if (one.sent < sizeof one.header + one.bytes.size()) continue;
    settle(one.message, Message::State::done);
    out_.pop_front();
  }
}

void SocketLink::read_some() {
  constexpr int kMostReads = 64;  // then other links get their turn
  for (int reads = 0; reads < kMostReads; ++reads) {
    const bool header = !in_message_;
    void* to = header ? reinterpret_cast<char*>(&in_) + header_bytes_
                      : reinterpret_cast<char*>(into_.data()) + into_bytes_;
    const std::size_t room = header ? sizeof in_ - header_bytes_ : into_.size() - into_bytes_;
    const ssize_t count = ::recv(socket_.get(), to, room, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count < 0) return lose(fmt::format("its connection broke: {}", std::strerror(errno)));
    if (count == 0) return lose("it has closed its connection");
    if (header) {
      header_bytes_ += static_cast<std::size_t>(count);
      if (header_bytes_ == sizeof in_) begin_message();
    } else {
      into_bytes_ += static_cast<std::size_t>(count);
    }
    if (in_message_ && into_bytes_ == into_.size()) end_message();
  }
}

void SocketLink::begin_message() {
  const auto found = wanted_.find(in_.tag);
  in_message_ = true;
  into_bytes_ = 0;
  keeps_ = found == wanted_.end();
  if (keeps_) {
    kept_in_.resize(in_.bytes);
    into_ = kept_in_;
    return;
  }
  const Wanted one = found->second.front();
  if (one.bytes.size() != in_.bytes) wrong_size(in_.bytes, one.bytes.size());
  found->second.pop_front();
  if (found->second.empty()) wanted_.erase(found);
  into_ = one.bytes;
  filling_ = one.message;
}

void SocketLink::end_message() {
  in_message_ = false;
  header_bytes_ = 0;
  if (!keeps_) return settle(std::exchange(filling_, nullptr), Message::State::done);
  // Its receive may have been posted in the meantime.
  const auto found = wanted_.find(in_.tag);
  if (found == wanted_.end()) {
    early_[in_.tag].push_back(std::exchange(kept_in_, {}));
    return;
  }
  const Wanted one = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) wanted_.erase(found);
  if (one.bytes.size() != kept_in_.size()) wrong_size(kept_in_.size(), one.bytes.size());
  if (!kept_in_.empty()) std::memcpy(one.bytes.data(), kept_in_.data(), kept_in_.size());
  settle(one.message, Message::State::done);
}

}  // namespace sortie::trainer
