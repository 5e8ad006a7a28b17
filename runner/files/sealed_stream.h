// SealedStream: messages between two runners over TCP that nobody without the link's key can read,
// forge, reorder or replay into another place (libsodium's secretstream, XChaCha20-Poly1305). The
// key comes from the launcher, over each host's own SSH connection, for this one link.
#pragma once

#include <sodium.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::runner {

class SealedStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  enum class Side { serves, fetches };
  static constexpr std::size_t kKeyBytes = 32;

  explicit SealedStream(Socket socket);
  ~SealedStream();
  SealedStream(const SealedStream&) = delete;
  SealedStream& operator=(const SealedStream&) = delete;

  boost::asio::awaitable<Result<>> connect(boost::asio::ip::tcp::endpoint endpoint);
  /// Unsealed, before open(): the number of the link.
  boost::asio::awaitable<Result<>> write_link(std::uint32_t link);
  boost::asio::awaitable<Result<std::uint32_t>> read_link();
  /// Both sides send their header; from then on everything is sealed.
  boost::asio::awaitable<Result<>> open(const std::string& key, Side side);

  boost::asio::awaitable<Result<>> write(wire::Message message);
  /// Error: closed, a deadline, or not from the holder of the key.
  boost::asio::awaitable<Result<wire::Message>> read();

  /// The socket is closed when that passes before the next call.
  void set_deadline(std::chrono::milliseconds limit);

 private:
  std::shared_ptr<Socket> socket_;
  boost::asio::steady_timer deadline_;
  crypto_secretstream_xchacha20poly1305_state push_{}, pull_{};
};

}  // namespace sortie::runner
