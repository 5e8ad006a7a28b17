// A Channel that shares ownership of a command with coroutines, and closes it when destroyed.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/host/transport.h"

namespace sortie::launcher {

/// `Session` has the functions of Channel. Its coroutines keep the session alive while they run;
/// the destructor closes it in any case.
template <class Session>
class OwnedChannel : public Channel {
 public:
  explicit OwnedChannel(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  ~OwnedChannel() override { session_->close(); }

  boost::asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) override {
    return session_->read_some(buffer);
  }
  boost::asio::awaitable<Result<>> write(std::string_view bytes) override {
    return session_->write(bytes);
  }
  std::string stderr_tail() const override { return session_->stderr_tail(); }
  boost::asio::awaitable<Result<ProcessStatus>> wait() override { return session_->wait(); }
  void close() override { session_->close(); }

 private:
  std::shared_ptr<Session> session_;
};

}  // namespace sortie::launcher
